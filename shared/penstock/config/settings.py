"""The one configuration tree. Frozen; resolved once where the engine core starts; passed on whole.

The command line, the library's keywords and the reference of settings derive from the structs
below: a field's flag is its name with dashes, its help is its description. Large groups of
settings have modules of their own; everybody imports them from here.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from penstock.config.cache_settings import CacheDtype, CacheSettings
from penstock.config.gateway_settings import (
    AccessLog,
    GatewayConfig,
    OversizedMaxTokens,
    Routing,
    UnknownFields,
)
from penstock.config.media_settings import MediaSettings
from penstock.config.model_settings import (
    Convert,
    Dtype,
    LoadFormat,
    LoraSettings,
    MatmulPrecision,
    ModelImpl,
    ModelSettings,
    Quantization,
    Runner,
)
from penstock.config.scheduler_settings import (
    LimitSettings,
    PreemptionMode,
    SchedulerSettings,
    SchedulingPolicy,
)
from penstock.config.speculative_settings import SpeculativeSettings
from penstock.config.storage_settings import StorageSettings
from penstock.config.worker_settings import Device, WorkerSettings


class ModelsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Several models."""

    models: Annotated[
        str | None,
        Meta(
            description="YAML or JSON file that lists models (docs/guides/several-models.md); "
            "default: the one that --model names."
        ),
    ] = None
    models_memory_gib: Annotated[
        Annotated[float, Meta(gt=0, le=1_048_576)] | None,
        Meta(
            description="GiB of all loaded models together, by what each counts for in the list; "
            "default: no limit."
        ),
    ] = None
    model_idle_minutes: Annotated[
        float,
        Meta(
            ge=0,
            le=525_600,
            description="Minutes without a request after which an on-demand model is unloaded; 0:"
            " never for this reason.",
        ),
    ] = 0.0
    model_turn_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="Seconds for which a model with work keeps its memory while another waits.",
        ),
    ] = 10.0
    model_load_timeout: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="Seconds that an on-demand model may take to become ready, and a request "
            "waits for it.",
        ),
    ] = 600.0


__all__ = [
    "AccessLog",
    "CacheDtype",
    "CacheSettings",
    "Convert",
    "Device",
    "Dtype",
    "EngineConfig",
    "Executor",
    "GatewayConfig",
    "GrammarSettings",
    "LimitSettings",
    "LoadFormat",
    "LogFormat",
    "LogLevel",
    "LogSettings",
    "LoraSettings",
    "MatmulPrecision",
    "MediaSettings",
    "MetricsSettings",
    "ModelImpl",
    "ModelSettings",
    "ModelsSettings",
    "OversizedMaxTokens",
    "ParallelSettings",
    "PreemptionMode",
    "Quantization",
    "RecordSettings",
    "Routing",
    "Runner",
    "SchedulerSettings",
    "SchedulingPolicy",
    "ServeConfig",
    "SpeculativeSettings",
    "StorageSettings",
    "TransportSettings",
    "UnknownFields",
    "WorkerSettings",
]

Executor = Literal["local", "ray"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "text", "logfmt", "json"]


class ParallelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model over several workers (ranks)."""

    tensor_parallel_size: Annotated[
        int, Meta(ge=1, le=64, description="Ranks that each layer is split over.")
    ] = 1
    pipeline_parallel_size: Annotated[
        int, Meta(ge=1, le=64, description="Pipeline stages, each of tensor-parallel-size ranks.")
    ] = 1
    enable_expert_parallel: Annotated[
        bool,
        Meta(
            description="Each of the tensor-parallel-size ranks holds some of a layer's experts as "
            "a whole, not a part of each (`cpu` backend)."
        ),
    ] = False

    @property
    def ranks(self) -> int:
        """Workers of one engine core; rank r is tensor rank r % tensor of stage r // tensor."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


class GrammarSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Structured output: limits on grammars."""

    max_grammar_bytes: Annotated[
        int, Meta(ge=64, le=16_777_216, description="Longest grammar or schema, bytes.")
    ] = 262_144
    max_grammars: Annotated[
        int,
        Meta(
            ge=1,
            le=65_536,
            description="Compiled grammars that a worker keeps.",
        ),
    ] = 256
    grammar_compile_timeout: Annotated[
        float,
        Meta(gt=0, le=600, description="Wall-clock seconds that a grammar may take to compile."),
    ] = 30.0
    grammar_mask_budget_ms: Annotated[
        float,
        Meta(ge=0, le=1000, description="Milliseconds that a step may wait for its masks."),
    ] = 10.0
    max_number_digits: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="Digits in a row of a number in a JSON schema's output, unless the schema "
            "needs more; 0: any number.",
        ),
    ] = 16
    warm_grammars: Annotated[
        bool,
        Meta(
            description="Load the grammar library (75 to 180 MB) once the worker is idle, not "
            "when the first grammar comes. With more than 200,000 tokens in the "
            "vocabulary it is loaded with the weights (390 MB)."
        ),
    ] = False


class TransportSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sessions between the processes. Times in seconds."""

    beat_interval: Annotated[
        float, Meta(gt=0, le=60, description="Seconds of silence before a heartbeat.")
    ] = 0.5
    peer_timeout: Annotated[
        float, Meta(gt=0, le=600, description="Seconds of silence that end a session.")
    ] = 2.5
    progress_timeout: Annotated[
        float,
        Meta(
            gt=0,
            le=600,
            description="Seconds without progress in a step until not ready, or without an engine "
            "core's status until its session ends.",
        ),
    ] = 10.0
    stuck_timeout: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="Seconds without progress in a step after which its workers are replaced.",
        ),
    ] = 300.0
    max_message_bytes: Annotated[
        int, Meta(ge=65_536, description="Largest frame accepted from a peer, bytes.")
    ] = 67_108_864
    curve_dir: Annotated[
        str | None,
        Meta(
            description="Folder of this role's CurveZMQ keys (`penstock curve-keys`), for tcp://; "
            "default: none."
        ),
    ] = None
    allow_plain_tcp: Annotated[
        bool, Meta(description="Use tcp:// between machines without keys, unencrypted.")
    ] = False


class RecordSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Recording of the engine core's inputs, for `penstock replay`."""

    record_dir: Annotated[
        str | None,
        Meta(description="Folder for recordings, which hold prompts' token ids; default: none."),
    ] = None
    record_max_mib: Annotated[
        int,
        Meta(ge=1, le=65_536, description="MiB of events in a file; then a new file is begun."),
    ] = 64
    record_files: Annotated[
        int, Meta(ge=1, le=10_000, description="Recordings kept in the folder, newest last.")
    ] = 8


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ports for /metrics and health checks of engine cores and workers."""

    engine_metrics_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            description="The engine core's port; core N uses port + N; 0: a free one; default none."
        ),
    ] = None
    worker_metrics_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            description="The workers' port; worker N uses port + N; 0: a free one; default: none."
        ),
    ] = None
    metrics_host: Annotated[
        str, Meta(description="Address of both ports; they need no key, so keep it private.")
    ] = "127.0.0.1"


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything the engine core decides, and what it hands to its workers."""

    model: ModelSettings = ModelSettings()
    cache: CacheSettings = CacheSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    limits: LimitSettings = LimitSettings()
    worker: WorkerSettings = WorkerSettings()
    parallel: ParallelSettings = ParallelSettings()
    grammar: GrammarSettings = GrammarSettings()
    media: MediaSettings = MediaSettings()
    speculation: SpeculativeSettings = SpeculativeSettings()
    lora: LoraSettings = LoraSettings()
    transport: TransportSettings = TransportSettings()
    record: RecordSettings = RecordSettings()
    metrics: MetricsSettings = MetricsSettings()


BIT_SETTINGS = frozenset(
    {
        "dtype",
        "quantization",
        "matmul_precision",
        "model_impl",
        "language_model_only",
        "attention_backend",
        "batch_invariant",
        "cpu_experts",
        "flash_attention_3",
        "kv_cache_dtype",
        "calculate_kv_scales",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "max_number_digits",
        "max_model_len",
    }
)
"""Settings of an engine that may change outputs' bits: who computes an output again needs the
same."""


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Logging."""

    log_level: Annotated[LogLevel, Meta(description="The lowest level that is logged.")] = "info"
    log_format: Annotated[
        LogFormat, Meta(description="auto: text on a terminal, else logfmt (`key=value`).")
    ] = "auto"


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`penstock serve`: engine cores, their workers, and gateways on one machine."""

    engine: EngineConfig = EngineConfig()
    gateway: GatewayConfig = GatewayConfig()
    storage: StorageSettings = StorageSettings()
    models: ModelsSettings = ModelsSettings()
    log: LogSettings = LogSettings()
    gateways: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="Gateway processes sharing the HTTP socket; for `penstock gateway`: how "
            "many there are in all. Limits by the minute need Redis then.",
        ),
    ] = 1
    data_parallel_size: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="Engine cores, each with its own worker, that share requests, memory and "
            "threads.",
        ),
    ] = 1
    kv_roles: Annotated[
        str,
        Meta(
            description="With data_parallel_size: the kv_role of each engine core, as "
            "prefill,decode, which then fetch KV blocks from each other."
        ),
    ] = ""
    executor: Annotated[
        Executor,
        Meta(
            description="Where workers run: local: on the engine core's machine; ray: actors of a "
            "Ray cluster (needs the extra `ray`)."
        ),
    ] = "local"

    @property
    def core(self) -> EngineConfig:
        """Returns the engine core's settings: `engine`, with `auto` replaced by the scheduling
        policy that it stands for. A file of API keys means that there are several tenants."""
        scheduler = self.engine.scheduler
        if scheduler.scheduling_policy != "auto" or self.gateway.api_keys is None:
            return self.engine
        scheduler = msgspec.structs.replace(scheduler, scheduling_policy="fair")
        return msgspec.structs.replace(self.engine, scheduler=scheduler)

    @property
    def doors(self) -> int:
        """Processes that count what an API key uses in a minute: gateways, and gRPC's."""
        return self.gateways + (self.gateway.grpc_port is not None)
