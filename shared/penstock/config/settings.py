"""The one configuration tree. Frozen; resolved once where the engine core starts; handed on whole.

The command line, the library's keywords and the reference of settings derive from the structs
below: a field's flag is its name with dashes, its help is its description.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

PreemptionMode = Literal["auto", "recompute", "swap"]
SchedulingPolicy = Literal["fcfs", "priority", "fair"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
CacheDtype = Literal["auto", "float32", "bfloat16", "float16", "int8", "fp8"]
Quantization = Literal["none", "int8", "int4", "fp8"]
Device = Literal["auto", "cpu", "cuda"]
Executor = Literal["local", "ray"]
LoadFormat = Literal["auto", "dummy"]
Runner = Literal["auto", "generate", "pooling"]
Convert = Literal["auto", "embed", "classify"]
ModelImpl = Literal["auto", "penstock", "transformers"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["logfmt", "json"]
AccessLog = Literal["off", "text", "json"]
Routing = Literal["prefix", "least-loaded", "round-robin"]
UnknownFields = Literal["error", "ignore"]


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which model, and how it is computed."""

    model: Annotated[
        str, Meta(description="Alias, hub id, folder in the hub's format, or .gguf file.")
    ] = "smollm2-135m"
    served_model_name: Annotated[
        str | None,
        Meta(
            description="Names that requests may use, with commas or blanks; replies show the"
            " first. Default: the model's own.",
            extra={"several": True},
        ),
    ] = None
    dtype: Annotated[
        Dtype,
        Meta(
            description="Type of weights, activations and KV cache; auto: the checkpoint's"
            " (bfloat16 for a GGUF file in F16 on CUDA)."
        ),
    ] = "auto"
    quantization: Annotated[
        Quantization,
        Meta(
            description="What a float checkpoint's matrices become. int8 on the cpu backend: groups"
            " of 32 that meet int8 activations, with dtype auto. On CUDA, int8 and int4: weights"
            " only, in groups; fp8: weights and activations, e4m3."
        ),
    ] = "none"
    load_format: Annotated[
        LoadFormat,
        Meta(
            description="auto: the checkpoint's weights; dummy: random ones of its shapes, for"
            " measurements."
        ),
    ] = "auto"
    runner: Annotated[
        Runner,
        Meta(
            description="What the model is for: generate gives text, pooling gives embeddings or"
            " classes; auto: as its files say."
        ),
    ] = "auto"
    convert: Annotated[
        Convert,
        Meta(
            description="What a pooling model gives: embed leaves a classification head aside,"
            " classify needs one; auto: as its files say."
        ),
    ] = "auto"
    model_impl: Annotated[
        ModelImpl,
        Meta(
            description="Whose code describes the layers: penstock: one of its families;"
            " transformers: that library's, on a CPU and slower; auto: a family where there is one."
        ),
    ] = "auto"
    language_model_only: Annotated[
        bool,
        Meta(
            description="Leave out what a model sees with: it takes text only, saves the memory of"
            " its tower, and may run on a faster backend."
        ),
    ] = False
    mmproj: Annotated[
        str | None,
        Meta(
            description="Beside a .gguf file: path of the one with what the model sees with, as"
            " llama.cpp's converter makes it."
        ),
    ] = None
    max_model_len: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="Longest prompt plus output, tokens, of an encoder-decoder model the"
            " decoder's; default: the model's own."
        ),
    ] = None
    cache_dir: Annotated[
        str | None, Meta(description="Folder for prepared models; default: XDG cache.")
    ] = None
    seed: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Seed of requests that bring none; default: drawn per request."),
    ] = None
    chat_template: Annotated[
        Annotated[str, Meta(max_length=1_048_576)] | None,
        Meta(description="File with a Jinja chat template, or its text; default: the model's own."),
    ] = None
    generation_config: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)],
        Meta(
            description="Where a request that leaves out temperature, top_p, top_k, min_p,"
            " repetition_penalty or max_tokens gets it from: auto: the model's own files or card;"
            " vllm: nowhere, so it gets the API's defaults; or a folder with a"
            " generation_config.json."
        ),
    ] = "auto"
    override_generation_config: Annotated[
        Annotated[str, Meta(max_length=65_536)] | None,
        Meta(
            description="JSON object with some of these values, which come before the others:"
            ' `{"temperature": 0.5}`; default: none.'
        ),
    ] = None

    @property
    def served_names(self) -> tuple[str, ...]:
        """What served_model_name lists; empty: the model's own name is used."""
        return tuple((self.served_model_name or "").replace(",", " ").split())


class CacheSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The paged KV cache."""

    num_kv_blocks: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="KV blocks in the pool; default: what memory allows. A block holds tokens"
            " of one KV group; a model with sliding windows has several, and smaller blocks."
        ),
    ] = None
    kv_block_size: Annotated[int, Meta(ge=1, le=1024, description="Tokens per KV block.")] = 16
    kv_cache_dtype: Annotated[
        CacheDtype,
        Meta(
            description="Type of stored keys and values; auto: as dtype has it; int8 (not on CUDA):"
            " a byte each, with a scale per token and head; fp8 (CUDA only): e4m3."
        ),
    ] = "auto"
    enable_prefix_caching: Annotated[
        bool, Meta(description="Use KV blocks of earlier requests that began with the same tokens.")
    ] = True
    state_checkpoint_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=1_048_576)] | None,
        Meta(
            description="Tokens between two checkpoints of recurrent layers' states, a multiple of"
            " kv_block_size; default: as many as have keys and values of a checkpoint's size, 2048"
            " at most. A prefix is found up to a checkpoint."
        ),
    ] = None
    host_kv_gib: Annotated[
        float,
        Meta(ge=0, description="GiB of host memory for KV blocks that leave the pool; 0: none."),
    ] = 0.0
    kv_memory_fraction: Annotated[
        float,
        Meta(
            gt=0, le=0.95, description="Share of free memory that the KV pool may take, on a CPU."
        ),
    ] = 0.4
    kv_memory_gib: Annotated[
        float,
        Meta(
            ge=0,
            le=1_048_576,
            description="GiB that the KV pool takes at most, on a CPU, unless one sequence of"
            " max_model_len needs more; 0: kv_memory_fraction alone bounds it.",
        ),
    ] = 4.0
    gpu_memory_utilization: Annotated[
        float,
        Meta(gt=0, le=1, description="Share of a GPU's memory for weights, work and KV pool."),
    ] = 0.9
    enable_encoder_cache: Annotated[
        bool,
        Meta(
            description="Use encodings of pictures, sounds and videos that earlier requests of the"
            " same API key and cache_salt brought."
        ),
    ] = True
    encoder_cache_rows: Annotated[
        Annotated[int, Meta(ge=1, le=16_777_216)] | None,
        Meta(
            description="Embeddings of encoded pictures, sounds and videos that are kept; default:"
            " what suits the model. A request needs room for its largest item at least."
        ),
    ] = None
    media_load_mib: Annotated[
        int,
        Meta(
            ge=1,
            le=1_048_576,
            description="MiB of prepared pictures, sounds and videos that wait at the worker to be"
            " encoded; those of one request must fit. Where the longest prompt has less, that is"
            " the bound.",
        ),
    ] = 512


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Admission and the step's budget."""

    max_num_seqs: Annotated[
        int, Meta(ge=1, le=4096, description="Sequences that may run in one step.")
    ] = 256
    max_num_batched_tokens: Annotated[
        int, Meta(ge=1, le=1_048_576, description="Token budget of one step.")
    ] = 2048
    max_step_slowdown: Annotated[
        float,
        Meta(
            ge=0,
            description="How many times as long as the decodes alone a step may take that prompts"
            " (with fair: other tenants) share with them, if that is over 0.1 s; without decodes it"
            " may take 2 s. 0: no bound.",
        ),
    ] = 2.0
    max_steps_in_flight: Annotated[
        int, Meta(ge=1, le=4, description="Steps sent before the first one's result is back.")
    ] = 2
    preemption_mode: Annotated[
        PreemptionMode,
        Meta(
            description="KV of preempted sequences: recompute drops it, swap keeps it in the pool "
            "or on the host for as long as there is room, auto takes what costs less."
        ),
    ] = "auto"
    scheduling_policy: Annotated[
        SchedulingPolicy,
        Meta(
            description="Who is served first: fcfs by arrival; priority by the request's "
            "priority, which ages; fair by weighted shares of the tenants (API keys)."
        ),
    ] = "fcfs"
    tenants: Annotated[
        str,
        Meta(
            description="What tenants may have: "
            "`NAME:weight=3,max_requests=8,highest_priority=-5;…`. NAME: the first 32 hex digits "
            "of the API key's SHA-256, `anonymous` for no key, `*` for all others; default: none.",
            pattern=r"^([\w.*-]{1,64}(:[a-z_]+=-?\d{1,7}(,[a-z_]+=-?\d{1,7})*)?;?)*$",
            max_length=65_536,
        ),
    ] = ""
    max_waiting_requests: Annotated[
        int,
        Meta(
            ge=1,
            description="Requests that may wait, beside those for which a slot and blocks are free;"
            " more are refused with 503.",
        ),
    ] = 4096
    max_waiting_tokens: Annotated[
        int, Meta(ge=1, description="Prompt tokens that may wait; more are refused with 503.")
    ] = 4_194_304
    max_carried_tokens: Annotated[
        int,
        Meta(
            ge=1,
            description="Tokens that all sequences which start in one step may have, computed"
            " before or not; one may always start.",
        ),
    ] = 262_144
    max_encoded_rows: Annotated[
        int,
        Meta(
            ge=1,
            description="Embeddings of pictures, sounds and videos that a step may encode, beside"
            " its tokens; one item may always be encoded.",
        ),
    ] = 2048


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one request may bring."""

    max_request_tokens: Annotated[
        int,
        Meta(
            ge=1,
            description="Tokens of a request's sequences together: n (or beam_width) times its"
            " prompt and max_tokens. One sequence may always fill the context.",
        ),
    ] = 4_194_304
    max_logit_bias: Annotated[int, Meta(ge=0, le=1024, description="Token ids in logit_bias.")] = (
        1024
    )
    max_allowed_token_ids: Annotated[
        int, Meta(ge=1, le=262_144, description="Token ids in allowed_token_ids.")
    ] = 262_144
    max_bad_words_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=262_144,
            description="Token ids that all of bad_words encode to, with and without a space"
            " before each.",
        ),
    ] = 16_384


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a worker computes."""

    device: Annotated[
        Device, Meta(description="What computes; auto: a GPU where there is one.")
    ] = "auto"
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
    batch_invariant: Annotated[
        bool,
        Meta(
            description="On CUDA: products whose sums don't depend on the batch, so that outputs"
            " have the same bits in any company, as they always have on a CPU."
        ),
    ] = False
    enforce_eager: Annotated[
        bool, Meta(description="On CUDA: decode without CUDA graphs; slower, for debugging.")
    ] = False


class ParallelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model over several workers, its ranks."""

    tensor_parallel_size: Annotated[
        int, Meta(ge=1, le=64, description="Ranks that share out each layer.")
    ] = 1
    pipeline_parallel_size: Annotated[
        int, Meta(ge=1, le=64, description="Stages of layers, each of tensor-parallel-size ranks.")
    ] = 1

    @property
    def ranks(self) -> int:
        """Workers of one engine core; rank r is tensor rank r % tensor of stage r // tensor."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


class GrammarSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Structured output: bounds on what a client's grammar may cost."""

    max_grammar_bytes: Annotated[
        int, Meta(ge=64, le=16_777_216, description="Longest grammar or schema, bytes.")
    ] = 65_536
    max_grammars: Annotated[
        int, Meta(ge=1, le=65_536, description="Compiled grammars that a worker keeps.")
    ] = 256
    grammar_compile_timeout: Annotated[
        float,
        Meta(gt=0, le=600, description="Seconds of the clock that a grammar may take to compile."),
    ] = 30.0
    grammar_mask_budget_ms: Annotated[
        float,
        Meta(ge=0, le=1000, description="Milliseconds that a step may wait for its masks."),
    ] = 10.0


class MediaSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Media in prompts: where they may come from, and what they may cost."""

    limit_mm_per_prompt: Annotated[
        str,
        Meta(
            description='Items of each kind that a prompt may hold, as JSON: `{"image": 4, "audio":'
            " 1}`; 0: none."
        ),
    ] = '{"image": 16, "audio": 16, "video": 16}'
    allowed_media_domains: Annotated[
        str,
        Meta(
            description="Domains that media may be fetched from over http and https: a JSON list"
            " or names with commas; default: none, so that nothing is fetched."
        ),
    ] = ""
    allowed_local_media_path: Annotated[
        str,
        Meta(
            description="Folder whose files requests may name by `file://`; default: none.",
        ),
    ] = ""
    mm_processor_kwargs: Annotated[
        str,
        Meta(
            description="Settings of the model's media processors to change, as JSON:"
            ' `{"max_pixels": 401408}`; default: none.'
        ),
    ] = ""
    media_io_kwargs: Annotated[
        str,
        Meta(
            description="Which frames of a video file are shown, as JSON:"
            ' `{"video": {"num_frames": 32}}`; fps: so many for each second of it; default: what'
            " the model's processor says, or 32."
        ),
    ] = ""
    mm_processor_cache_gb: Annotated[
        float,
        Meta(ge=0, le=1024, description="GiB of prepared media that a front end keeps."),
    ] = 0.25
    media_processes: Annotated[
        int, Meta(ge=1, le=64, description="Processes that prepare media, of each front end.")
    ] = 2
    media_process_mib: Annotated[
        int,
        Meta(ge=256, le=65_536, description="MiB of address space that each of them may take."),
    ] = 1024
    media_process_seconds: Annotated[
        float,
        Meta(gt=0, le=600, description="Seconds of processor time that an item may take there."),
    ] = 10.0
    max_media_bytes: Annotated[
        int, Meta(ge=1, le=1_073_741_824, description="Bytes of an item's file; more is a 413.")
    ] = 20_971_520
    max_media_request_bytes: Annotated[
        int,
        Meta(
            ge=1,
            le=1_073_741_824,
            description="Bytes of all files of a request together; more is a 413.",
        ),
    ] = 67_108_864
    max_media_pixels: Annotated[
        int,
        Meta(
            ge=1,
            le=268_435_456,
            description="Pixels of a picture, or of a video's frame; more is a 400.",
        ),
    ] = 67_108_864
    max_media_seconds: Annotated[
        float, Meta(gt=0, le=86_400, description="Seconds of a sound or a video; more is a 400.")
    ] = 600.0
    max_video_frames: Annotated[
        int, Meta(ge=1, le=4096, description="Frames of a video that are shown; more is a 400.")
    ] = 256
    max_video_pixels: Annotated[
        int,
        Meta(
            ge=1,
            le=268_435_456,
            description="Pixels of all frames of a video that are shown, once they are resized;"
            " more is a 400.",
        ),
    ] = 67_108_864
    max_media_in_flight_mib: Annotated[
        int,
        Meta(
            ge=1,
            le=1_048_576,
            description="MiB of media, files and what is made of them, of all requests that a front"
            " end has; what comes beyond is refused with 429.",
        ),
    ] = 1024
    max_media_tenant_mib: Annotated[
        int, Meta(ge=1, le=1_048_576, description="The same, of one tenant's requests.")
    ] = 512
    media_fetch_seconds: Annotated[
        float, Meta(gt=0, le=600, description="Seconds that fetching an item may take.")
    ] = 5.0


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
        Meta(
            gt=0,
            le=600,
            description="Seconds without progress in a step, then not ready; or without a word of"
            " an engine core's state, then its session ends.",
        ),
    ] = 10.0
    max_message_bytes: Annotated[
        int, Meta(ge=65_536, description="Largest frame accepted from a peer, bytes.")
    ] = 67_108_864
    curve_dir: Annotated[
        str | None,
        Meta(
            description="This role's folder of CurveZMQ keys (`penstock curve-keys`), for tcp://"
            " endpoints; default: none."
        ),
    ] = None
    allow_plain_tcp: Annotated[
        bool, Meta(description="Use tcp:// between machines without keys, in plain.")
    ] = False


class RecordSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Recording what the engine core is told, for `penstock replay`."""

    record_dir: Annotated[
        str | None,
        Meta(description="Folder for recordings, which hold prompts' token ids; default: none."),
    ] = None
    record_max_mib: Annotated[
        int,
        Meta(ge=1, le=65_536, description="MiB of events in a file; then a new one is begun."),
    ] = 64
    record_files: Annotated[
        int, Meta(ge=1, le=10_000, description="Recordings kept in the folder, newest last.")
    ] = 8


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ports for /metrics and health checks; gateways have theirs anyway."""

    engine_metrics_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(description="The engine core's; of several, N has port + N; 0: free; default: none."),
    ] = None
    worker_metrics_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(description="The workers': worker N has this port + N; 0: a free one; default: none."),
    ] = None
    metrics_host: Annotated[
        str, Meta(description="Address of both; they ask for no key, so keep it private.")
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
    transport: TransportSettings = TransportSettings()
    record: RecordSettings = RecordSettings()
    metrics: MetricsSettings = MetricsSettings()


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The HTTP side."""

    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535, description="Port; 0 picks a free one.")] = 8000
    ssl_certfile: Annotated[
        str | None,
        Meta(
            description="Certificate (PEM, with its chain) to serve HTTPS with, on the admin port"
            " too; default: none, plain HTTP."
        ),
    ] = None
    ssl_keyfile: Annotated[
        str | None,
        Meta(
            description="The certificate's private key (PEM, not encrypted); default: it is in the"
            " certificate's file."
        ),
    ] = None
    api_keys: Annotated[
        str | None,
        Meta(
            description="YAML or JSON file of API keys (`penstock key`), read again when it"
            " changes; without one, and without PENSTOCK_API_KEY in the environment, everybody may"
            " ask."
        ),
    ] = None
    allow_open: Annotated[
        bool, Meta(description="Listen on other addresses than loopback without API keys.")
    ] = False
    admin_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            description="Port for /metrics where there are API keys, which only an admin's key"
            " opens; gateway N of several takes this port + N; default: none."
        ),
    ] = None
    rate_limit_storage: Annotated[
        str,
        Meta(
            description="Where requests and tokens a minute are counted: `memory`, or"
            " `redis://HOST:PORT/DB` (`rediss://`, `redis+unix://`), which several gateways share.",
            pattern=r"^(memory|(redis|rediss|redis\+unix)://.+)$",
        ),
    ] = "memory"
    rate_limit_per_gateway: Annotated[
        bool, Meta(description="With several gateways, a key has its limits once in each.")
    ] = False
    allowed_origins: Annotated[
        str,
        Meta(
            description='Web origins that may call this server: a JSON list (`["*"]`: all) or'
            " names with commas; default: none."
        ),
    ] = ""
    allowed_methods: Annotated[
        str, Meta(description="Methods that other origins may use, as above.")
    ] = "*"
    allowed_headers: Annotated[
        str, Meta(description="Headers that other origins may send, as above.")
    ] = "*"
    allow_credentials: Annotated[
        bool, Meta(description="Whether other origins may send cookies and the like.")
    ] = False
    routing: Annotated[
        Routing,
        Meta(
            description="Which of several engine cores gets a request: prefix: the one that has"
            " seen its first tokens, unless that is busy; least-loaded; round-robin."
        ),
    ] = "prefix"
    unknown_fields: Annotated[
        UnknownFields,
        Meta(
            description="A request's field that no endpoint knows: error: a 400 that names it and"
            " the nearest one, as OpenAI's is, for a misspelt `temprature` would change the answer"
            " unnoticed; ignore: it is skipped, as vLLM and llama-server do."
        ),
    ] = "error"
    max_header_bytes: Annotated[
        int,
        Meta(ge=1024, le=16_777_216, description="Largest request head, bytes; more is a 431."),
    ] = 65_536
    keepalive_interval: Annotated[
        float,
        Meta(ge=0, le=3600, description="Seconds between SSE keep-alive comments; 0: none."),
    ] = 15.0
    max_body_bytes: Annotated[
        int,
        Meta(
            ge=1024,
            description="Largest request body, bytes; more is a 413. A picture in it is a third"
            " longer than its file (base64): keep it above 4/3 of max_media_bytes.",
        ),
    ] = 33_554_432
    access_log: Annotated[
        AccessLog,
        Meta(
            description="A line on stderr for each request that was answered: key's name, model,"
            " tokens, times, status. text: as the log has its lines; json."
        ),
    ] = "off"
    slow_request_seconds: Annotated[
        float,
        Meta(ge=0, description="Seconds after which a request's timeline is logged; 0: never."),
    ] = 60.0
    otlp_traces_endpoint: Annotated[
        Annotated[str, Meta(pattern=r"^https?://[^\s/]+\S*$", max_length=2048)] | None,
        Meta(
            description="URL that OpenTelemetry traces are sent to, by OTLP over HTTP (a"
            " collector's `http://HOST:4318/v1/traces`); needs the extra `otel`; default: none."
        ),
    ] = None
    trace_sample_ratio: Annotated[
        float,
        Meta(ge=0, le=1, description="Share of requests without a `traceparent` that are traced."),
    ] = 1.0
    shutdown_timeout: Annotated[
        float, Meta(ge=0, description="Seconds that open requests get at shutdown.")
    ] = 5.0
    tool_call_parser: Annotated[
        str,
        Meta(
            description="How the model writes tool calls: hermes, llama3_json, mistral, json, or a"
            " plug-in's name; auto: by its chat template."
        ),
    ] = "auto"
    enable_auto_tool_choice: Annotated[
        bool, Meta(description="Whether the model may choose to call tools (tool_choice auto).")
    ] = True
    reasoning_parser: Annotated[
        str,
        Meta(
            description="How the model marks its thinking: qwen3, deepseek_r1, or a plug-in's name;"
            " auto: by its chat template; none: it is left in the content."
        ),
    ] = "auto"


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the processes say on stderr."""

    log_level: Annotated[LogLevel, Meta(description="The least that is shown.")] = "info"
    log_format: Annotated[LogFormat, Meta(description="logfmt: `key=value`; json: an object.")] = (
        "logfmt"
    )


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`penstock serve`: engine cores, their workers, and gateways on one machine."""

    engine: EngineConfig = EngineConfig()
    gateway: GatewayConfig = GatewayConfig()
    log: LogSettings = LogSettings()
    gateways: Annotated[
        int, Meta(ge=1, le=64, description="Gateway processes sharing the HTTP socket.")
    ] = 1
    data_parallel_size: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="Engine cores, each with a worker of its own, that share the requests; they"
            " also share out the threads (unless --threads says how many each has) and the memory.",
        ),
    ] = 1
    executor: Annotated[
        Executor,
        Meta(
            description="Where workers run: local: processes beside the engine core; ray: actors of"
            " a Ray cluster, in a placement group (needs the extra `ray`)."
        ),
    ] = "local"
