"""Settings of a gateway."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from penstock.config.plugins import ROUTING, check_named
from penstock.config.tree import ADVANCED

AccessLog = Literal["off", "text", "json"]
Routing = Literal["prefix", "least-loaded", "round-robin"]
UnknownFields = Literal["error", "ignore"]
ToolStrictLevel = Literal["auto", "function", "parameter"]
OversizedMaxTokens = Literal["error", "reduce"]


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """HTTP and gRPC."""

    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535, description="Port; 0 picks a free one.")] = 8000
    grpc_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            description="Port for gRPC, served by a separate process; 0 picks a free one; needs"
            " the extra `grpc`; default: none."
        ),
    ] = None
    grpc_max_calls: Annotated[
        int,
        Meta(
            extra=ADVANCED, ge=1, le=65_536, description="Concurrent gRPC calls; more are refused."
        ),
    ] = 4096
    ssl_certfile: Annotated[
        str | None,
        Meta(
            description="Certificate (PEM, with its chain) for HTTPS, also on the admin and gRPC "
            "ports; default: plain HTTP."
        ),
    ] = None
    ssl_keyfile: Annotated[
        str | None,
        Meta(
            description="The certificate's private key (PEM, not encrypted); default: taken from"
            " the certificate's file."
        ),
    ] = None
    api_keys: Annotated[
        str | None,
        Meta(
            description="YAML or JSON file of API keys (`penstock key`), reloaded when it "
            "changes; without it and PENSTOCK_API_KEY, anybody may use the server."
        ),
    ] = None
    allow_open: Annotated[
        bool, Meta(description="Listen on addresses other than loopback without API keys.")
    ] = False
    allow_remote_control: Annotated[
        bool,
        Meta(
            description="Without API keys, let other machines control the server: pause, sleep,"
            " load adapters, replace weights, collective_rpc."
        ),
    ] = False
    admin_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            description="Port for /metrics where there are API keys, for a key with `admin` or "
            "`metrics`; gateway N takes this port + N, then gRPC's and the batches' "
            "process the next; default: none."
        ),
    ] = None
    metrics_key_file: Annotated[
        str | None,
        Meta(
            description="File of one more API key, for /metrics on --admin-port alone (`penstock "
            "key prometheus --metrics --key-file FILE`). Read at the start, and "
            "whenever --api-keys changes."
        ),
    ] = None
    weights_allowed_folder: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)] | None,
        Meta(
            description="Folder below which /update_weights_from_disk may read weights; default: "
            "none can be replaced."
        ),
    ] = None
    rate_limit_storage: Annotated[
        str,
        Meta(
            description="Where limits per minute are counted: `memory`, or `redis://HOST:PORT/DB` "
            "(`rediss://`, `redis+unix://`), for several gateways.",
            pattern=r"^(memory|(redis|rediss|redis\+unix)://.+)$",
        ),
    ] = "memory"
    rate_limit_fallback: Annotated[
        Literal["refuse", "local"],
        Meta(
            description="While --rate-limit-storage doesn't answer: `refuse` requests of keys with "
            "limits (503), or have each gateway count for itself (`local`)."
        ),
    ] = "refuse"
    rate_limit_timeout: Annotated[
        float,
        Meta(
            ge=0.1,
            le=60,
            description="Seconds that --rate-limit-storage may take to answer. Once it didn't, no "
            "request waits for it until it is back.",
        ),
    ] = 2.0
    rate_limit_per_gateway: Annotated[
        bool,
        Meta(description="With several gateways, apply a key's limits in each gateway separately."),
    ] = False
    root_path: Annotated[
        str,
        Meta(
            description="Prefix that a proxy leaves in paths: with /llm, /llm/v1/models is "
            "/v1/models; default: none.",
            pattern=r"^(/[^/?#\s]+)*$",
        ),
    ] = ""
    allowed_origins: Annotated[
        str,
        Meta(
            description='Web origins that may call this server: a JSON list (`["*"]`: all) or'
            " names with commas; default: none."
        ),
    ] = ""
    allowed_hosts: Annotated[
        str,
        Meta(
            description="Host names that a server without API keys answers to, besides IP "
            "addresses, localhost and its machine's names: a JSON list or names with "
            "commas; *.DOMAIN: all below a domain; *: any."
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
        str,
        Meta(
            description="Which engine core gets a request: prefix: the one that has computed its "
            "first tokens, unless it is busy; least-loaded; round-robin.",
            extra={"built_in": get_args(Routing), "plugins": ROUTING},
        ),
    ] = "prefix"
    plugins: Annotated[
        str,
        Meta(
            description="Plug-ins for endpoints, loggers and metrics: all (broken ones are left "
            "out), none, or names with commas, each of which must load.",
            max_length=4096,
        ),
    ] = "all"
    unknown_fields: Annotated[
        UnknownFields,
        Meta(
            description="Unknown fields of requests: error: a 400 that names it; ignore: skip it."
        ),
    ] = "error"
    held_responses_mib: Annotated[
        int,
        Meta(
            ge=0,
            le=65_536,
            description="MiB of responses that a single gateway holds in memory for an hour, "
            "where --stored-response-hours keeps none; a quarter of it for a tenant. "
            "0: none.",
        ),
    ] = 64
    oversized_max_tokens: Annotated[
        OversizedMaxTokens,
        Meta(
            description="A max_tokens that the context has no room for: error: a 400; reduce: as "
            "long as there is room, as always on Messages and Ollama's API."
        ),
    ] = "error"
    max_header_bytes: Annotated[
        int,
        Meta(
            extra=ADVANCED,
            ge=1024,
            le=16_777_216,
            description="Largest request head, bytes; more is a 431.",
        ),
    ] = 65_536
    keepalive_interval: Annotated[
        float,
        Meta(ge=0, le=3600, description="Seconds between SSE keep-alive comments; 0: none."),
    ] = 15.0
    max_body_bytes: Annotated[
        int,
        Meta(
            ge=1024,
            description="Largest request body, bytes; more is a 413. Base64 needs 4/3 of "
            "max_media_bytes.",
        ),
    ] = 33_554_432
    max_body_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=600,
            description="Processor seconds for decoding, checking and tokenising one body, and "
            "one more for each 100,000 tokens of the context; more is a 400 that "
            "names the largest field.",
        ),
    ] = 2.0
    max_body_memory_mib: Annotated[
        int,
        Meta(
            ge=64,
            le=65_536,
            description="MiB of memory that this may take.",
        ),
    ] = 1024
    max_realtime_connections: Annotated[
        int,
        Meta(
            extra=ADVANCED,
            ge=0,
            le=65_536,
            description="Open WebSockets of /v1/realtime for each gateway; more are refused with"
            " 503.",
        ),
    ] = 256
    max_realtime_tenant_connections: Annotated[
        int,
        Meta(
            extra=ADVANCED,
            ge=0,
            le=65_536,
            description="Open WebSockets of one tenant; more get a 429.",
        ),
    ] = 128
    access_log: Annotated[
        AccessLog,
        Meta(
            description="A line on stderr for each answered request, with key's name, model, "
            "tokens, times and status. text: in the log's format; json."
        ),
    ] = "off"
    receipt_key_file: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)] | None,
        Meta(
            description="File of the Ed25519 key (PEM) that signs receipts; made if it isn't "
            "there; needs the extra `encryption`; default: no receipts."
        ),
    ] = None
    share_identical_requests: Annotated[
        bool,
        Meta(
            description="Compute a tenant's identical open requests once (with a seed, or "
            "temperature 0); an API key's entry takes precedence."
        ),
    ] = False
    slow_request_seconds: Annotated[
        float,
        Meta(ge=0, description="Seconds after which a request's timeline is logged; 0: never."),
    ] = 60.0
    otlp_traces_endpoint: Annotated[
        Annotated[str, Meta(pattern=r"^https?://[^\s/]+\S*$", max_length=2048)] | None,
        Meta(
            description="URL for OpenTelemetry traces, by OTLP over HTTP "
            "(`http://HOST:4318/v1/traces`); needs the extra `otel`; default: none."
        ),
    ] = None
    trace_sample_ratio: Annotated[
        float,
        Meta(ge=0, le=1, description="Share of requests without a `traceparent` that are traced."),
    ] = 1.0
    shutdown_timeout: Annotated[
        float, Meta(ge=0, description="Seconds that open requests get to finish at shutdown.")
    ] = 5.0
    tool_call_parser: Annotated[
        str,
        Meta(
            description="Format in which the model writes tool calls, by vLLM's names (hermes,"
            " qwen3_coder, mistral, …), or a plug-in's name; auto: recognised by its chat"
            " template."
        ),
    ] = "auto"
    enable_auto_tool_choice: Annotated[
        bool, Meta(description="Whether the model may choose to call tools (tool_choice auto).")
    ] = True
    tool_strict_level: Annotated[
        ToolStrictLevel,
        Meta(
            description="What tool calls are held to. auto: their tool's schema, if it is "
            "`strict`; function: also the tools' names; parameter: all schemas, as if "
            "strict."
        ),
    ] = "auto"
    reasoning_parser: Annotated[
        str,
        Meta(
            description="Format in which the model marks its reasoning (qwen3, deepseek_r1, …),"
            " or a plug-in's name; auto: recognised by its chat template; none: left in the"
            " content."
        ),
    ] = "auto"

    def __post_init__(self) -> None:
        check_named("routing", self.routing, get_args(Routing), ROUTING)
