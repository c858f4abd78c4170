"""The outermost layer of the application: every response passes through it.

It decides, too, who may reach a server from a web browser, and control one that has no API keys. A
page of any site can send requests to a server on its reader's own machine. Without API keys it
could use it like the reader, so such a server answers only to names of its own machine, and to no
page of another origin. A page doesn't know a key, so requests to a server with keys need neither
rule; WebSockets keep the second one.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.config.settings import GatewayConfig
from penstock.process import logs
from penstock_gateway.http.body_room import HeldBody
from penstock_gateway.http.control import check_control, foreign, refused
from penstock_gateway.http.errors import (
    ClientGone,
    HTTPError,
    as_http_error,
    clip,
    head_too_large,
    logged_cause,
)
from penstock_gateway.http.notes import HEADER, begin_notes, header_of
from penstock_gateway.http.operations import (
    OPENAI_ERRORS,
    ErrorShape,
    OpenPaths,
    Operation,
    PathSet,
)
from penstock_gateway.http.own_names import names, own_hosts
from penstock_gateway.http.replies import send_error
from penstock_gateway.http.scope_keys import REQUEST_ID
from penstock_gateway.http.sockets import guarded, status_of
from penstock_gateway.keys.ring import LIMIT_HEADERS
from penstock_gateway.service import Service
from penstock_gateway.tracing.trace import log_fields

log = logs.get(__name__)


_NO_HEADERS: dict[bytes, bytes] = {}
_SANE_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class Boundary:
    """Gives each request its id, and each response the headers that tell of it and of limits.

    Turns whatever an endpoint raises into the error object of its path (OpenAI's, unless the
    operation says otherwise), as long as no response has been started.
    """

    def __init__(self, app: ASGIApp, service: Service, operations: Iterable[Operation]) -> None:
        self._app = app
        self._service = service
        operations = list(operations)
        self._door = Door(service.config, operations, has_keys=service.ring is not None)
        others = [each for each in operations if each.errors_as != OPENAI_ERRORS]
        self._shapes = {each.path: each.errors_as for each in others}
        self._shapes_below = tuple(
            (f"{each.path}/", each.errors_as)
            for each in others
            if not each.parameters and each.path != "/"
        )
        self._with_slash = frozenset(
            each.path if each.path.endswith("/") else f"{each.path}/"
            for each in operations
            if each.path.endswith("/") or each.media_type == "text/html" or not each.described
        )
        self._shapes_by_header = {
            each.errors_as.asked_by: each.errors_as for each in others if each.errors_as.asked_by
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        self._settle_path(scope)
        request_id = request_id_of(scope)
        scope[REQUEST_ID] = request_id
        if scope["type"] == "websocket":
            await guarded(self._opened, scope, receive, self._counting(send), request_id)
            return
        shape = self._shape(scope)
        started = finished = False
        notes = begin_notes()

        async def send_with_id(message: Message) -> None:
            nonlocal started, finished
            if message["type"] == "http.response.start":
                started = True
                self._service.responses[message["status"]] += 1
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id.encode()),
                    *([] if shape.id_header is None else [(shape.id_header, request_id.encode())]),
                    *scope.get(LIMIT_HEADERS, _NO_HEADERS).items(),
                    *header_of(notes),
                ]
            else:
                finished = not message.get("more_body", False)
            await send(message)

        try:
            if head_bytes(scope) > self._service.config.max_header_bytes:
                raise head_too_large(self._service.config.max_header_bytes)
            self._door.check(scope)
            if shape.versions:
                _check_version(scope, shape)
            await self._app(scope, receive, send_with_id)
        except ClientGone as gone:
            log.debug("client gone", request=request_id, reason=str(gone), **log_fields(scope))
        except asyncio.CancelledError as cancelled:
            # The server cancels what is still open when its time to shut down is over.
            if not started:
                answer = as_http_error(cancelled)
                await send_error(send_with_id, answer, shape.encode(answer, request_id))
            if not self._service.draining:
                raise
        except Exception as error:
            answer = as_http_error(error)
            if answer.status == 500 or isinstance(error, MemoryError):
                log.error(
                    "request failed",
                    request=request_id,
                    path=scope["path"],
                    **logged_cause(error) | log_fields(scope),
                )
            if not started:
                await send_error(send_with_id, answer, shape.encode(answer, request_id))
            elif not finished:
                raise  # The server cuts the connection: the client must see that it is not whole.
        finally:
            held: HeldBody | None = scope.pop(HeldBody.SCOPE, None)
            if held is not None:
                held.leave()

    def _settle_path(self, scope: Scope) -> None:
        """Takes a path with a slash at its end for the one without, as other servers redirect it,
        before anything looks at it; but for pages, which name their files from where they are. A
        proxy's prefix is left out."""
        path, prefix = scope["path"], self._service.config.root_path
        if prefix and (path == prefix or path.startswith(f"{prefix}/")):
            path = scope["path"] = path[len(prefix) :] or "/"
        if path.endswith("/") and not path.endswith("//") and path not in self._with_slash:
            scope["path"] = path[:-1]

    def _shape(self, scope: Scope) -> ErrorShape:
        """How errors look for this client at this path: also below a path, where nothing is."""
        path = scope["path"]
        if path in self._shapes:
            return self._shapes[path]
        for name, _ in scope["headers"]:
            if name in self._shapes_by_header:
                return self._shapes_by_header[name]
        for above, shape in self._shapes_below:
            if path.startswith(above):
                return shape
        return OPENAI_ERRORS

    def _counting(self, send: Send) -> Send:
        """Counts how handshakes are answered."""

        async def counting(message: Message) -> None:
            status = status_of(message)
            if status is not None:
                self._service.responses[status] += 1
            await send(message)

        return counting

    async def _opened(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A WebSocket's handshake has come."""
        config = self._service.config
        if head_bytes(scope) > config.max_header_bytes:
            raise head_too_large(config.max_header_bytes)
        self._door.check(scope)
        await self._app(scope, receive, send)


def _check_version(scope: Scope, shape: ErrorShape) -> None:
    """Raises HTTPError 400 for an unknown version of the API."""
    for name, value in scope["headers"]:
        if name == shape.asked_by and value.decode("latin-1") not in shape.versions:
            header = name.decode()
            raise HTTPError(
                400,
                f"{header} is {clip(value.decode('latin-1'))}; allowed: "
                f"{', '.join(shape.versions)}, or no such header",
                param=header,
                code="invalid_value",
            )


def request_id_of(scope: Scope) -> str:
    """The client's x-request-id when it is 1 to 128 printable ASCII characters, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SANE_ID.fullmatch(value):
            return str(value, "ascii")
    return uuid.uuid4().hex


def head_bytes(scope: Scope) -> int:
    """Bytes of the request's line and headers, as they were sent, give or take some blanks."""
    size = (
        len(scope.get("raw_path") or b"")
        + len(scope["query_string"])
        + len(scope.get("method", "GET"))
    )
    for name, value in scope["headers"]:
        size += len(name) + len(value) + 4
    return size


APP_ORIGINS = r"(?!https?:|file:|null)[a-z][a-z0-9+.\-]*:.*|https?://tauri\.localhost"
"""Origins of installed programs and of browsers' extensions, which no page can have: schemes of
their own, such as app (Obsidian), tauri, vscode-webview, capacitor or chrome-extension. Origins
that the boundary admits may also read the answers."""
_APP_ORIGIN = re.compile(APP_ORIGINS.encode())
_ASKED = frozenset((b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest"))


class Door:
    """Lets requests in, or refuses them, before anything is routed. What its operation calls open
    tells and changes nothing of this server, and is let in always."""

    def __init__(
        self, config: GatewayConfig, operations: Iterable[Operation], *, has_keys: bool
    ) -> None:
        """Raises StartupError for names in the settings that are none."""
        operations = list(operations)
        self._config = config
        self._has_keys = has_keys
        self._hosts = own_hosts(config)
        self._origins = frozenset(
            each.encode() for each in names("allowed_origins", config.allowed_origins)
        )
        self._any_origin = b"*" in self._origins
        self._open = OpenPaths(operations)
        self._control = PathSet(each for each in operations if each.controls)

    def check(self, scope: Scope) -> None:
        """Raises HTTPError 403."""
        of_http = scope["type"] == "http"
        if of_http and (self._has_keys or self._open.let_in(scope)):
            return
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in _ASKED:
                headers[name] = value
        host = headers.get(b"host", b"")
        if not self._has_keys and not self._hosts(host):
            raise _unknown_host(host)
        if not self._any_origin:
            self._check_origin(headers, host, safe=scope.get("method") in ("GET", "HEAD"))
        if of_http and scope["path"] in self._control:
            check_control(scope, self._config, scope["path"])

    def _check_origin(self, headers: dict[bytes, bytes], host: bytes, *, safe: bool) -> None:
        """safe: the method changes nothing."""
        origin = headers.get(b"origin")
        site = headers.get(b"sec-fetch-site")
        if origin is None:
            # Old browsers may leave both out of a GET, whose answer they then keep from the page.
            followed_link = (
                safe
                and headers.get(b"sec-fetch-mode") == b"navigate"
                and headers.get(b"sec-fetch-dest") == b"document"
            )
            if site in (None, b"same-origin", b"none") or followed_link:
                return
            raise foreign("another site")
        if origin in self._origins or _APP_ORIGIN.fullmatch(origin):
            return
        # With a proxy that replaces Host, only the browser's own header counts.
        if site == b"same-origin" or (host and origin.partition(b"://")[2] == host.lower()):
            return
        raise foreign(clip(origin.decode("latin-1")))


def _unknown_host(host: bytes) -> HTTPError:
    name = clip(host.decode("latin-1"))
    return refused(
        f"this server has no API keys, and the request's Host, {name}, is not one of its names: a "
        "web page might have the name point here. Use an IP address, localhost or the machine's "
        "own name, or have the "
        "server's operator allow the name with --allowed-hosts, or set --api-keys",
        "host_not_allowed",
    )


EXPOSED = (
    "x-request-id",
    "request-id",
    "retry-after",
    "server-timing",
    "x-penstock-shared",
    HEADER,
    *(
        f"x-ratelimit-{part}-{what}"
        for part in ("limit", "remaining", "reset")
        for what in ("requests", "tokens")
    ),
)
"""Response headers that a page may read."""


class _CorsForApps:
    """CORSMiddleware for the origins of programs; the door answers others."""

    def __init__(self, app: ASGIApp, **settings: Any) -> None:
        self._app = app
        self._cors = CORSMiddleware(app, **settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = dict(scope.get("headers", ())).get(b"origin", b"")
        app = self._cors if _APP_ORIGIN.fullmatch(origin) else self._app
        await app(scope, receive, send)


def add_cors(app: FastAPI, config: GatewayConfig) -> None:
    """For the origins that are named, and those of programs. Preflights are answered without a key:
    browsers send none with them, and they reach no endpoint."""
    origins = names("allowed_origins", config.allowed_origins)
    app.add_middleware(
        CORSMiddleware if origins else _CorsForApps,
        allow_origins=origins,
        allow_origin_regex=APP_ORIGINS,
        allow_methods=names("allowed_methods", config.allowed_methods),
        allow_headers=names("allowed_headers", config.allowed_headers),
        allow_credentials=config.allow_credentials,
        # Browsers ask for it where a public page or a program calls a private address.
        allow_private_network=True,
        expose_headers=EXPOSED,
    )
