"""What each route does and which query parameters it takes, defined once: the router, the OpenAPI
document and the keys all read it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl

import msgspec
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from penstock.errors import InvalidRequest
from penstock_gateway.http.errors import ErrorReply, HTTPError, clip

if TYPE_CHECKING:
    from starlette.requests import Request

Parameters = Mapping[str, tuple[str, dict[str, Any]]]
"""What each means, and its JSON schema: a string, integer or boolean, with an enum or bounds, or an
array of such."""

QUERY = "penstock.query"
"""The key of a scope's parameters."""
_FLAGS = {"true": True, "false": False, "1": True, "0": False}


def take_query(scope: Scope, known: Parameters, *, skips_unknown: bool) -> None:
    """Reads the parameters for `asked`. Raises InvalidRequest for one that is unknown, senseless or
    given twice.

    skips_unknown: unknown ones are no error."""
    found: dict[str, list[str]] = {}
    text = scope["query_string"].decode("latin-1")
    for name, value in parse_qsl(text, keep_blank_values=True):
        # A list may be marked as one, as OpenAI's SDKs do it.
        bare = name.removesuffix("[]")
        name = bare if name not in known and _is_list(known, bare) else name
        if name in known:
            found.setdefault(name, []).append(value)
        elif not skips_unknown:
            allowed = ", ".join(known) or "none"
            raise InvalidRequest(f"unknown parameter {clip(name)}; allowed: {allowed}", param=name)
    scope[QUERY] = read = {}
    for name, (_, schema) in known.items():
        read[name] = _read(name, found.get(name, []), schema)


def asked(request: Request, name: str) -> Any:
    """A parameter's value; of one that wasn't given its default, or None; of a list, a list."""
    return request.scope[QUERY][name]


def _is_list(known: Parameters, name: str) -> bool:
    return name in known and known[name][1]["type"] == "array"


def _read(name: str, given: list[str], schema: dict[str, Any]) -> Any:
    if schema["type"] == "array":
        return [_value(name, each, schema["items"]) for each in given]
    if len(given) > 1:
        raise InvalidRequest(f"{name} is given {len(given)} times; allowed: once", param=name)
    return _value(name, given[0], schema) if given else schema.get("default")


def _value(name: str, given: str, schema: dict[str, Any]) -> Any:
    value: Any = given
    if schema["type"] == "integer":
        value = _whole(given)
        least, most = schema.get("minimum"), schema.get("maximum")
        if value is not None and (least is None or value >= least):
            value = value if most is None or value <= most else None
        else:
            value = None
        bounds = f" in [{least}, {most}]" if most is not None else f" ≥ {least}"
        allowed = f"it must be a whole number{bounds if least is not None else ''}"
    elif schema["type"] == "boolean":
        value = _FLAGS.get(given)
        allowed = "allowed: true, false"
    if "enum" in schema:
        value = value if value in schema["enum"] else None
        allowed = f"allowed: {', '.join(map(str, schema['enum']))}"
    if value is None:
        raise InvalidRequest(f"{name} is {clip(given)}; {allowed}", param=name)
    return value


def _whole(text: str) -> int | None:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else None


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """How errors look at a path."""

    reply: type[msgspec.Struct]
    """The body's struct."""
    encode: Callable[[HTTPError, str], bytes]
    """Makes the body of an error, and of the request's id."""
    id_header: bytes | None = None
    """Under which the request's id goes out, besides x-request-id."""
    asked_by: bytes | None = None
    """A request header of the clients that expect it at any path."""
    versions: tuple[str, ...] = ()
    """Values that the header may have; empty: any."""


OPENAI_ERRORS = ErrorShape(ErrorReply, lambda error, request_id: error.encoded())

Access = Literal["open", "key", "admin", "metrics"]
"""Who may call an operation once there are API keys: anybody, holders of any key, holders of an
admin's key, these and holders of a key for metrics."""

REQUEST_HEADERS: dict[str, tuple[str, dict[str, Any]]] = {
    "x-request-id": (
        "The request's id in replies and logs: 1 to 128 printable ASCII characters without spaces; "
        "anything else is replaced by a generated id.",
        {"type": "string"},
    ),
    "x-deadline-ms": (
        "Milliseconds after the request's arrival at which it is given up.",
        {"type": "integer", "minimum": 1, "maximum": 86_400_000},
    ),
    "x-penstock-timeline": (
        "1: the reply includes a timeline of the request.",
        {"type": "string", "enum": ["0", "1"]},
    ),
    "x-penstock-receipt": (
        "1: the reply includes a signed receipt; digest: without token ids; logprobs: with the"
        " tokens' log-probabilities, too.",
        {"type": "string", "enum": ["0", "1", "digest", "logprobs"]},
    ),
}
"""Headers that mean something: what, and their schema."""

GENERATING_HEADERS = ("x-deadline-ms", "x-penstock-timeline")
SIGNED_HEADERS = (*GENERATING_HEADERS, "x-penstock-receipt")
"""Headers of endpoints that give receipts."""

_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_EVERYWHERE = (400, 431, 500, 503)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation of the API: one method at one path."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    summary: str
    tag: str
    body: Any = None
    """A msgspec struct, or what else msgspec makes a schema of; None: there is none."""
    example: Mapping[str, Any] | None = field(default=None, hash=False)
    """A body that works unchanged; None: `openapi.EXAMPLES` has it."""
    body_type: str = "application/json"
    reply: Any = None
    """A msgspec struct, or what else msgspec makes a schema of; None: none is described."""
    access: Access = "key"
    streams: bool = False
    """Whether the reply is a stream of events with stream: true."""
    stream_type: str = "text/event-stream"
    """Media type of that."""
    statuses: tuple[int, ...] = ()
    """Errors of its own, besides those that its method, access and `counted` bring."""
    media_type: str = "application/json"
    """Media type of the reply."""
    headers: tuple[str, ...] = ()
    """Request headers besides x-request-id that mean something here."""
    query: Parameters = field(default_factory=dict, hash=False)
    """Parameters after the path's question mark; others are refused."""
    counted: bool = False
    """Whether it computes something: then it counts against an API key's requests a minute, and is
    traced."""
    described: bool = True
    """Whether it is in the OpenAPI document, which the files of the page aren't."""
    errors_as: ErrorShape = OPENAI_ERRORS
    traced_as: str | None = None
    """gen_ai.operation.name of its traces, where OpenTelemetry has a word for it."""

    def route(self, endpoint: Callable[..., Any]) -> OperationRoute:
        """endpoint: an async function from Request to Response, or an ASGI application."""
        return OperationRoute(self, endpoint)

    @property
    def template(self) -> str:
        """The path as OpenAPI writes it."""
        return _PARAMETER.sub(r"{\1}", self.path)

    @property
    def controls(self) -> bool:
        """Whether it changes what the server does for everybody."""
        return self.access == "admin" and self.method != "GET"

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters in its path."""
        return _PARAMETER.findall(self.path)

    @property
    def errors(self) -> list[int]:
        """Every status of an error that it can answer with."""
        found = {*_EVERYWHERE, *self.statuses}
        if self.access != "open":
            found |= {401, 403}
        if self.counted:
            found.add(429)
        if self.body is not None:
            found |= {404, 408, 413, 429}
            found |= {415} if self.body_type == "application/json" else set()
        return sorted(found)


class PathSet:
    """Paths of some operations. Of one with a parameter, all paths that begin as it does: what is
    closed is so however it goes on."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        paths = [each.path for each in operations]
        self._whole = frozenset(path for path in paths if "{" not in path)
        self._beginnings = tuple(path.partition("{")[0] for path in paths if "{" in path)

    def __contains__(self, path: str) -> bool:
        return path in self._whole or path.startswith(self._beginnings)


class OpenPaths:
    """Paths of open operations, which anybody may ask for by whatever method; but for a method by
    which another operation at the same path is not open."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        operations = list(operations)
        self._paths = frozenset(each.path for each in operations if each.access == "open")
        self._closed = frozenset(
            (each.method, each.path) for each in operations if each.access != "open"
        )

    def let_in(self, scope: Scope) -> bool:
        """Whether an HTTP request is for one of them."""
        path = scope["path"]
        return path in self._paths and (scope["method"], path) not in self._closed


class OperationRoute(Route):
    """A route that says what it does."""

    def __init__(self, operation: Operation, endpoint: Callable[..., Any]) -> None:
        super().__init__(operation.path, endpoint, methods=[operation.method])
        self.operation = operation
        self.checks_query = operation.described and operation.media_type != "text/html"
        """Whether what its operation doesn't say of query parameters is refused."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.methods and scope["method"] in self.methods:  # HEAD is there with GET.
            take_query(scope, self.operation.query, skips_unknown=not self.checks_query)
        await super().handle(scope, receive, send)


def posting(
    path: str,
    summary: str,
    body: Any,
    reply: Any,
    *,
    body_type: str = "application/json",
    tag: str = "generate",
    streams: bool = False,
    stream_type: str = "text/event-stream",
    headers: tuple[str, ...] = GENERATING_HEADERS,
    traced_as: str | None = None,
    errors_as: ErrorShape = OPENAI_ERRORS,
    query: Parameters | None = None,
    example: Mapping[str, Any] | None = None,
) -> Operation:
    """Returns an endpoint that computes something from a posted body."""
    return Operation(
        method="POST",
        path=path,
        summary=summary,
        tag=tag,
        body=body,
        body_type=body_type,
        reply=reply,
        streams=streams,
        stream_type=stream_type,
        headers=headers,
        counted=True,
        traced_as=traced_as,
        errors_as=errors_as,
        query=query or {},
        example=example,
    )
