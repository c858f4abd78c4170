"""The API keys in force, looked up by digest, who sent the request that is being handled, and the
layer that requires a key, before anything is routed.

The caller is kept in a context variable, so that it reaches everything that submits work for the
request, also in other tasks, and no endpoint can forget to pass it on. The layer decides by the
same path that the router will match, and by a list of the paths that need no key. Any other
spelling needs a key, whether or not there is a route for it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.config.settings import GatewayConfig
from penstock.errors import StartupError
from penstock.net.exposure import check_limits, configured_keys
from penstock.process import logs
from penstock.request.api_keys import ApiKey, digest_of
from penstock_gateway.http.errors import HTTPError, clip
from penstock_gateway.http.operations import OpenPaths, Operation, PathSet
from penstock_gateway.http.sockets import key_of

log = logs.get(__name__)

LOOK_EVERY = 2.0
"""Seconds between looks at whether the file has changed."""


class KeyRing:
    """All keys. A lookup is a digest and a look into a table, whether the key is known or not;
    what a client sent is compared with nothing else."""

    def __init__(self, config: GatewayConfig, keys: list[ApiKey], gateways: int = 1) -> None:
        self._config = config
        self._gateways = gateways
        self._by_digest = {key.digest: key for key in keys}
        self._version = _version(config.api_keys)

    @classmethod
    def of(cls, config: GatewayConfig, gateways: int = 1) -> KeyRing | None:
        """The configured keys; None if there are none, and everybody may ask. Raises
        StartupError."""
        keys = configured_keys(config)
        if keys is None:
            return None
        check_limits(config, gateways, keys)
        return cls(config, keys, gateways)

    def __len__(self) -> int:
        return len(self._by_digest)

    def find(self, scope: Scope) -> ApiKey | None:
        """The key that a request brings, if it brings one that is known."""
        return self._by_digest.get(digest_of(key_sent(scope)))

    def known(self, digest: bytes) -> ApiKey | None:
        """The key with that SHA-256, if it is still known."""
        return self._by_digest.get(digest)

    def reload(self) -> None:
        """Reads the file again; what is wrong with it is logged, and the keys stay as they were.
        Requests that run go on."""
        version = _version(self._config.api_keys)
        try:
            keys = configured_keys(self._config) or []
            check_limits(self._config, self._gateways, keys)
        except StartupError as error:
            log.error("the API keys are unchanged", reason=str(error))
        else:
            self._by_digest = {key.digest: key for key in keys}
            log.info("API keys loaded", count=len(keys))
        self._version = version

    async def watch(self) -> None:
        """Reads the file again whenever it has changed; until it is cancelled."""
        while self._config.api_keys is not None:
            await asyncio.sleep(LOOK_EVERY)
            if _version(self._config.api_keys) != self._version:
                await asyncio.to_thread(self.reload)


def key_sent(scope: Scope) -> bytes:
    """The key that a request brings, known or not, wherever clients have it; empty without one. A
    header that comes twice has none."""
    bearers, named = [], []
    for name, value in scope["headers"]:
        if name == b"authorization":
            bearers.append(value)
        elif name == b"x-api-key":  # Where Anthropic's clients have it.
            named.append(value)
    key = _bearer_key(bearers[0]) if len(bearers) == 1 else b""
    if not key and len(named) == 1:
        key = named[0].strip()
    if not key and scope["type"] == "websocket":
        key = key_of(scope)
    return key


def _bearer_key(header: bytes) -> bytes:
    scheme, _, key = header.strip().partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def _version(file: str | None) -> tuple[int, int, int] | None:
    try:
        about = os.stat(file) if file is not None else None
    except OSError:
        return None
    return None if about is None else (about.st_mtime_ns, about.st_size, about.st_ino)


class Caller:
    """The sender of a request."""

    __slots__ = ("background", "key", "limit_headers", "tenant")

    def __init__(
        self, key: ApiKey | None, *, tenant: str | None = None, background: bool = False
    ) -> None:
        self.key = key
        """The caller's API key; None if there are no keys."""
        self.tenant = tenant
        """The tenant of a request that was made on behalf of another one, without keys; None: the
        request says it itself."""
        self.background = background
        """Whether nobody waits for the answer."""
        self.limit_headers: dict[bytes, bytes] = {}
        """x-ratelimit-*, as they stand; the response takes them along."""

    def may_use(self, model: str) -> bool:
        """Whether its key allows the model."""
        return self.key is None or self.key.models is None or model in self.key.models

    def check_unloads(self, model: str) -> None:
        """Raises HTTPError 403 where its key may not have a model unloaded."""
        if self.key is not None and not (self.key.admin or self.key.unload_models):
            raise forbidden(
                f"unloading {clip(model)} needs an admin API key, or one with `unload_models`",
                param="keep_alive",
            )

    def check_model(self, model: str) -> None:
        """Raises HTTPError 403."""
        if not self.may_use(model):
            raise forbidden(f"this API key may not use the model {clip(model)}", param="model")


NOBODY = Caller(None)
current: ContextVar[Caller] = ContextVar("caller", default=NOBODY)


def forbidden(message: str, param: str | None = None) -> HTTPError:
    """403: the key is known, and may not do this."""
    return HTTPError(
        403, message, type="permission_error", param=param, code="insufficient_permissions"
    )


LIMIT_HEADERS = "penstock.limit_headers"
"""Key of a scope's x-ratelimit-* headers, for requests whose API key has limits."""

CALLER = "penstock.caller"
"""Key in the scope of the Caller of a request that brought a known API key."""


class KeyLimits(Protocol):
    """What keys may use in a minute, see `rate_limits.RateLimits`."""

    async def arrived(self, caller: Caller, *, counted: bool) -> None: ...


class Access:
    """ASGI middleware. ring: None where there are no keys.  limits: None where nothing is counted
    by the minute.  names: those of the model and its adapters, none while they aren't
    known."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        ring: KeyRing | None,
        limits: KeyLimits | None,
        operations: Iterable[Operation],
        names: Callable[[], list[str]],
    ) -> None:
        self._app = app
        self._ring = ring
        self._limits = limits
        self._names = names
        operations = list(operations)
        self._open = OpenPaths(operations)
        self._admin = PathSet(o for o in operations if o.access == "admin")
        self._metrics = frozenset(o.path for o in operations if o.access == "metrics")
        self._counted = frozenset((o.method, o.path) for o in operations if o.counted)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Only who calls the application in this process can put one there.
        caller: Caller | None = scope.get(CALLER)
        if caller is None:
            if self._ring is None or (scope["type"] == "http" and self._open.let_in(scope)):
                await self._app(scope, receive, send)
                return
            if scope["type"] not in ("http", "websocket"):
                raise unauthorized()
            caller = self._bearer(scope, self._ring)
        token = current.set(caller)
        try:
            await self._admit(caller, scope)
            await self._app(scope, receive, send)
        finally:
            current.reset(token)

    def _bearer(self, scope: Scope, ring: KeyRing) -> Caller:
        """The Caller whose key the request has. Raises HTTPError 401 and 403."""
        key = ring.find(scope)
        if key is None:
            raise unauthorized()
        caller = scope[CALLER] = Caller(key)
        self._check_path(key, scope["path"])
        return caller

    def _check_path(self, key: ApiKey, path: str) -> None:
        """Raises HTTPError 403 where the key isn't for that path."""
        if key.admin or (key.metrics and path in self._metrics):
            return
        if key.metrics:
            raise forbidden("this API key may only read /load, and /metrics on the admin port")
        if path in self._admin:
            raise forbidden(f"{path} needs an admin API key")
        if path in self._metrics:
            raise forbidden(f"{path} needs an admin API key, or one with `metrics`")

    async def _admit(self, caller: Caller, scope: Scope) -> None:
        """Raises HTTPError 403 for models that it may not use, and Limited."""
        key = caller.key
        if key is None:
            return
        # What is said over a WebSocket counts when it asks for something.
        counted = (scope.get("method", ""), scope["path"]) in self._counted
        if counted and key.models is not None:
            names = self._names()
            if names and not any(map(caller.may_use, names)):
                caller.check_model(names[0])
        if self._limits is not None and key.limited:
            scope[LIMIT_HEADERS] = caller.limit_headers
            await self._limits.arrived(caller, counted=counted)


def renew(caller: Caller, ring: KeyRing | None) -> None:
    """Gives the caller of a long connection its key as it is now. Raises HTTPError 401 for one that
    was taken away."""
    if ring is None or caller.key is None:
        return
    key = ring.known(caller.key.digest)
    if key is None:
        raise unauthorized()
    caller.key = key


def unauthorized() -> HTTPError:
    """401: no key, or one that is not known; which of the two is not said."""
    return HTTPError(
        401,
        "this server needs an API key, in the header `Authorization: Bearer KEY` or `x-api-key: "
        "KEY`, and this request has no valid one",
        type="authentication_error",
        code="invalid_api_key",
        headers=(("www-authenticate", 'Bearer realm="penstock"'),),
    )
