"""The one configuration tree. Frozen; resolved once where the engine core starts; handed on whole.

The command line, the library's keywords and the README's reference table derive from the structs
below: a field's flag is its name with dashes, its help is its description.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Dtype = Literal["auto", "float32", "bfloat16"]


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which model, and how it is computed."""

    model: Annotated[
        str, Meta(description="Alias, hub id, folder in the hub's format, or .gguf file.")
    ] = "smollm2-135m"
    served_model_name: Annotated[
        str | None, Meta(description="Name that requests use; default: the model's own.")
    ] = None
    dtype: Annotated[
        Dtype,
        Meta(description="Type of weights, activations and KV cache; auto: the checkpoint's."),
    ] = "auto"
    max_model_len: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Longest prompt plus output, tokens; default: the model's own."),
    ] = None
    cache_dir: Annotated[
        str | None, Meta(description="Folder for prepared models; default: XDG cache.")
    ] = None
    seed: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Seed of requests that bring none; default: drawn per request."),
    ] = None


class CacheSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The paged KV cache."""

    num_kv_blocks: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="KV blocks in the pool; default: what memory allows."),
    ] = None
    kv_block_size: Annotated[int, Meta(ge=1, le=1024, description="Tokens per KV block.")] = 16
    kv_memory_fraction: Annotated[
        float,
        Meta(gt=0, le=0.95, description="Share of free memory that the KV pool may take."),
    ] = 0.4


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Admission and the step's budget."""

    max_num_seqs: Annotated[
        int, Meta(ge=1, le=4096, description="Sequences that may run in one step.")
    ] = 256
    max_num_batched_tokens: Annotated[
        int, Meta(ge=1, le=1_048_576, description="Token budget of one step.")
    ] = 2048
    max_steps_in_flight: Annotated[
        int, Meta(ge=1, le=4, description="Steps sent before the first one's result is back.")
    ] = 2
    max_waiting_requests: Annotated[
        int, Meta(ge=1, description="Requests that may wait; more are refused with 503.")
    ] = 4096
    max_waiting_tokens: Annotated[
        int, Meta(ge=1, description="Prompt tokens that may wait; more are refused with 503.")
    ] = 4_194_304


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a worker computes."""

    attention_backend: Annotated[
        str, Meta(description="Kernel backend; auto: the fastest that this machine has.")
    ] = "auto"
    threads: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        Meta(description="Compute threads; default: usable cores."),
    ] = None
    numa_node: Annotated[
        Annotated[int, Meta(ge=0, le=1023)] | None,
        Meta(description="NUMA node whose CPUs and memory the worker keeps to; default: any."),
    ] = None


class TransportSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sessions between the processes. Times in seconds."""

    beat_interval: Annotated[
        float, Meta(gt=0, le=60, description="Seconds of silence before a beat is sent.")
    ] = 0.5
    peer_timeout: Annotated[
        float, Meta(gt=0, le=600, description="Seconds of silence that end a session.")
    ] = 2.5
    progress_timeout: Annotated[
        float,
        Meta(gt=0, le=600, description="Seconds in one step without progress; then not ready."),
    ] = 10.0
    max_message_bytes: Annotated[
        int, Meta(ge=65_536, description="Largest frame accepted from a peer, bytes.")
    ] = 67_108_864


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything the engine core decides, and what it hands to its workers."""

    model: ModelSettings = ModelSettings()
    cache: CacheSettings = CacheSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    worker: WorkerSettings = WorkerSettings()
    transport: TransportSettings = TransportSettings()


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The HTTP side."""

    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535, description="Port; 0 picks a free one.")] = 8000
    keepalive_interval: Annotated[
        float,
        Meta(ge=0, le=3600, description="Seconds between SSE keep-alive comments; 0: none."),
    ] = 15.0
    max_body_bytes: Annotated[
        int, Meta(ge=1024, description="Largest request body, bytes; more is a 413.")
    ] = 16_777_216
    slow_request_seconds: Annotated[
        float,
        Meta(ge=0, description="Seconds after which a request's timeline is logged; 0: never."),
    ] = 60.0
    shutdown_timeout: Annotated[
        float, Meta(ge=0, description="Seconds that open requests get at shutdown.")
    ] = 5.0


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`penstock serve`: one engine, its workers, and gateways on one machine."""

    engine: EngineConfig = EngineConfig()
    gateway: GatewayConfig = GatewayConfig()
    gateways: Annotated[
        int, Meta(ge=1, le=64, description="Gateway processes sharing the HTTP socket.")
    ] = 1
