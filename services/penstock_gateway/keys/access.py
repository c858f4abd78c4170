"""The layer that asks for an API key, before anything is routed.

It decides by the very path that the router will match, and by a list of the paths that need no
key: whatever is spelt otherwise needs one, be there a route for it or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock_gateway.errors import HTTPError
from penstock_gateway.keys.caller import Caller, current, forbidden
from penstock_gateway.keys.rate_limits import RateLimits
from penstock_gateway.keys.ring import KeyRing
from penstock_gateway.operations import Operation


class Access:
    """ASGI middleware. ring: None where there are no keys.  limits: None where nothing is counted
    by the minute.  served: the name of the model, None while it isn't known."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        ring: KeyRing | None,
        limits: RateLimits | None,
        operations: Iterable[Operation],
        served: Callable[[], str | None],
    ) -> None:
        self._app = app
        self._ring = ring
        self._limits = limits
        self._served = served
        operations = list(operations)
        self._open = frozenset(o.path for o in operations if o.access == "open")
        self._admin = frozenset(o.path for o in operations if o.access == "admin")
        self._counted = frozenset((o.method, o.path) for o in operations if o.counted)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._ring is None or (scope["type"] == "http" and scope["path"] in self._open):
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise unauthorized()
        key = self._ring.find(scope)
        if key is None:
            raise unauthorized()
        if scope["path"] in self._admin and not key.admin:
            raise forbidden(f"{scope['path']} needs an admin's API key")
        caller = Caller(key)
        counted = (scope["method"], scope["path"]) in self._counted
        if counted and key.models is not None and (served := self._served()) is not None:
            caller.check_model(served)
        token = current.set(caller)
        try:
            if self._limits is None or not key.limited:
                await self._app(scope, receive, send)
            else:
                await self._limited(caller, self._limits, counted, scope, receive, send)
        finally:
            current.reset(token)

    async def _limited(
        self,
        caller: Caller,
        limits: RateLimits,
        counted: bool,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", ()),
                    *caller.limit_headers.items(),
                ]
            await send(message)

        try:
            await limits.arrived(caller, counted=counted)
            await self._app(scope, receive, send_with_limits)
        except HTTPError as error:
            # It becomes a response further out.
            error.headers += tuple(
                (name.decode(), value.decode()) for name, value in caller.limit_headers.items()
            )
            raise


def unauthorized() -> HTTPError:
    """401: no key, or one that is not known; which of the two is not said."""
    return HTTPError(
        401,
        "this server needs an API key, in the header `Authorization: Bearer KEY`, and this request "
        "brought none that is known here",
        type="authentication_error",
        code="invalid_api_key",
        headers=(("www-authenticate", 'Bearer realm="penstock"'),),
    )
