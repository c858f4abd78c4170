"""The layer that requires an API key, before anything is routed.

It decides by the same path that the router will match, and by a list of the paths that need no key.
Any other spelling needs a key, whether or not there is a route for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from penstock_gateway.http.boundary import LIMIT_HEADERS
from penstock_gateway.http.errors import HTTPError
from penstock_gateway.http.operations import Operation
from penstock_gateway.keys.rate_limits import RateLimits
from penstock_gateway.keys.ring import Caller, KeyRing, current, forbidden

CALLER = "penstock.caller"
"""Key in the scope of the Caller of a request that brought a known API key."""


class Access:
    """ASGI middleware. ring: None where there are no keys.  limits: None where nothing is counted
    by the minute.  names: those of the model and its adapters, none while they aren't
    known."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        ring: KeyRing | None,
        limits: RateLimits | None,
        operations: Iterable[Operation],
        names: Callable[[], list[str]],
    ) -> None:
        self._app = app
        self._ring = ring
        self._limits = limits
        self._names = names
        operations = list(operations)
        self._open = frozenset(o.path for o in operations if o.access == "open")
        self._admin = frozenset(o.path for o in operations if o.access == "admin")
        self._counted = frozenset((o.method, o.path) for o in operations if o.counted)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Only who calls the application in this process can put one there.
        caller: Caller | None = scope.get(CALLER)
        if caller is None:
            if self._ring is None or (scope["type"] == "http" and scope["path"] in self._open):
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
        if scope["path"] in self._admin and not key.admin:
            raise forbidden(f"{scope['path']} needs an admin API key")
        return caller

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
