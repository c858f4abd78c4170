"""GET /api/tags, /api/ps and /api/version, and POST /api/show and /api/pull: what is served."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.protocol.to_frontend import Welcome
from penstock.request.generation_config import sampling_defaults
from penstock_dialects.ollama.request import ERRORS
from penstock_gateway.http.events import while_connected
from penstock_gateway.http.operations import Operation, OperationRoute, posting
from penstock_gateway.http.replies import send_json
from penstock_gateway.keys.ring import current
from penstock_gateway.models.backend import LATEST, EngineInfo, ModelBackend, capabilities
from penstock_gateway.request.endpoint import JsonEndpoint
from penstock_gateway.request.fields import Flag, Text
from penstock_gateway.service import Service
from penstock_gateway.system.version import Version

API_VERSION = "0.13.4"
"""The release of Ollama whose API this is: clients compare it with what they need."""

NEVER_YET = "1970-01-01T00:00:00Z"
"""Time of change of a model that has not been loaded yet."""

NEVER = "9999-12-31T23:59:59Z"
"""Time at which a loaded model would be unloaded."""

UNKNOWN = "unknown"
"""The architecture, where an engine core doesn't tell the family."""


class ModelDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway doesn't know of a model is empty. parent_model: of an adapter."""

    parent_model: str = ""
    format: str = ""
    family: str = ""
    families: list[str] = []
    parameter_size: str = ""
    quantization_level: str = ""


class TaggedModel(msgspec.Struct, frozen=True, kw_only=True):
    """modified_at: when the engine core started.  size: bytes of the weights; 0: not known."""

    name: str
    model: str
    modified_at: str
    size: int = 0
    digest: str
    details: ModelDetails = ModelDetails()


class TaggedModels(msgspec.Struct, frozen=True):
    models: list[TaggedModel]


class RunningModel(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    model: str
    size: int = 0
    size_vram: int = 0
    digest: str
    details: ModelDetails = ModelDetails()
    expires_at: str = NEVER
    context_length: int


class RunningModels(msgspec.Struct, frozen=True):
    models: list[RunningModel]


class ShowRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """name: an older word for model.  verbose: without effect."""

    model: Text = None
    name: Text = None
    verbose: Flag = None


class PullRequest(ShowRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields besides ShowRequest's have no effect: there is nothing to bring."""

    stream: Flag = None
    insecure: Flag = None


class PulledModel(msgspec.Struct, frozen=True):
    """The only line of the answer. status: success."""

    status: str = "success"


class ShownModel(msgspec.Struct, frozen=True, kw_only=True):
    """template: the chat template, in Jinja.  parameters: a name and a value in each line."""

    license: str = ""
    modelfile: str = ""
    parameters: str
    template: str
    details: ModelDetails = ModelDetails()
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


def _get(path: str, summary: str, reply: type) -> Operation:
    return Operation(
        method="GET", path=path, summary=summary, tag="models", reply=reply, errors_as=ERRORS
    )


TAGS = _get("/api/tags", "List the served models (Ollama)", TaggedModels)
RUNNING = _get("/api/ps", "List the loaded models (Ollama)", RunningModels)
VERSION = _get("/api/version", "The version of Ollama's API that is served (Ollama)", Version)
SHOW = posting(
    "/api/show",
    "Describe a model (Ollama)",
    ShowRequest,
    ShownModel,
    tag="models",
    headers=(),
    errors_as=ERRORS,
)


PULL = posting(
    "/api/pull",
    "Ask for a model that is served (Ollama)",
    PullRequest,
    PulledModel,
    tag="models",
    headers=(),
    errors_as=ERRORS,
)


class Pull(JsonEndpoint[PullRequest]):
    """Says of a served model that it is there. Programs ask so before they use one."""

    takes_forms_type = True
    ignores_unknown = True
    request_type = PullRequest
    takes_long_bodies = False
    answers_while_leaving = True

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = await self.read(scope, receive)
        self._service.models.named(
            request.model or request.name
        )  # Raises for one that isn't there.
        await send_json(send, 200, msgspec.json.encode(PulledModel()) + b"\n")


class Show(JsonEndpoint[ShowRequest]):
    """Tells of a model."""

    takes_forms_type = True
    ignores_unknown = True
    request_type = ShowRequest
    takes_long_bodies = False
    answers_while_leaving = True

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = await self.read(scope, receive)
        payload = await while_connected(self._of(request.model or request.name), receive)
        await send_json(send, 200, payload)

    async def _of(self, name: str | None) -> bytes:
        async with self._service.models.using(name) as asked:
            return msgspec.json.encode(self._shown(asked.engine))

    def _shown(self, engine: EngineInfo) -> ShownModel:
        welcome, template = engine.welcome, engine.text.template
        defaults = sampling_defaults(welcome.generation)
        architecture = welcome.family or UNKNOWN
        return ShownModel(
            parameters="\n".join(f"{name} {value}" for name, value in defaults.items()),
            template="" if template is None else template.source,
            details=_details(welcome),
            model_info={
                "general.architecture": architecture,
                "general.basename": welcome.model,
                "general.parameter_count": welcome.weights.numbers or None,
                "general.context_length": welcome.limits.max_model_len,
                "general.vocab_size": welcome.limits.vocab_size,
                # Where editors look for how long a prompt may be.
                f"{architecture}.context_length": welcome.limits.max_model_len,
            },
            capabilities=list(capabilities(engine)),
            modified_at=_time(welcome),
        )


def routes(service: Service) -> list[OperationRoute]:
    """The five routes about models; 503 while there is no engine core, but for the version."""

    def served(*, loaded: bool) -> list[tuple[Welcome | None, str, str]]:
        """What engine cores say of a model, a name of its or its adapters', and the digest.
        loaded: only what is loaded now."""
        models = service.models
        if not models.several and models.backends[0].residence is None:
            models.backends[0].engine()  # Raises where there is none.
        return [
            each
            for backend in models.backends
            if not loaded or backend.client.connected
            for each in _names_of(backend)
        ]

    async def tags(request: Request) -> Response:
        return _json(TaggedModels([_tagged(*each) for each in served(loaded=False)]))

    async def running(request: Request) -> Response:
        found = served(loaded=True)
        return _json(
            RunningModels([_running(known, name, digest) for known, name, digest in found if known])
        )

    async def version(request: Request) -> Response:
        return _json(Version(API_VERSION))

    return [
        TAGS.route(tags),
        RUNNING.route(running),
        VERSION.route(version),
        SHOW.route(Show(service)),
        PULL.route(Pull(service)),
    ]


def _names_of(backend: ModelBackend) -> list[tuple[Welcome | None, str, str]]:
    """What the key may not use isn't there for it."""
    known, caller = backend.client.welcome, current.get()
    digest = "" if known is None else known.digest
    names: dict[str, str] = {}
    if backend.name is not None and caller.may_use(backend.name):
        names = dict.fromkeys(backend.model_names(), digest)
    for adapter in backend.client.adapters.present():
        if adapter.file is not None and caller.may_use(adapter.name):
            names[adapter.name] = adapter.file.digest
    return [(known, *each) for each in names.items()]


def _tagged(known: Welcome | None, name: str, digest: str) -> TaggedModel:
    full, time = _full(name), NEVER_YET if known is None else _time(known)
    size = 0 if known is None else known.weights.size
    return TaggedModel(
        name=full,
        model=full,
        modified_at=time,
        size=size,
        digest=digest,
        details=_details(known, name),
    )


def _running(welcome: Welcome, name: str, digest: str) -> RunningModel:
    full, length = _full(name), welcome.limits.max_model_len
    return RunningModel(
        name=full,
        model=full,
        size=welcome.weights.size,
        digest=digest,
        details=_details(welcome, name),
        context_length=length,
    )


_FLOATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def _details(known: Welcome | None, name: str = "") -> ModelDetails:
    """name: by which it is listed."""
    if known is None:
        return ModelDetails()
    weights, family = known.weights, known.family
    own = not name or name in (known.model, *known.other_names)
    return ModelDetails(
        parent_model="" if own else known.model,
        format=weights.format,
        family=family,
        families=[family] if family else [],
        parameter_size=_counted(weights.numbers),
        quantization_level=weights.mixture or _FLOATS.get(weights.dtype, weights.dtype),
    )


def _counted(numbers: int) -> str:
    """`494.03M`, `7.6B`, as Ollama writes them."""
    if numbers >= 10**9:
        return f"{numbers / 10**9:.1f}B"
    return f"{numbers / 10**6:.2f}M" if numbers else ""


def _full(name: str) -> str:
    """Names without a tag get the one that stands for none."""
    return name if ":" in name else name + LATEST


def _time(welcome: Welcome) -> str:
    return datetime.fromtimestamp(welcome.created, UTC).isoformat().replace("+00:00", "Z")


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
