"""Who sent the request that is being handled.

It is kept in a context variable, so that it reaches everything that submits work for the request,
also in other tasks, and no endpoint can forget to pass it on.
"""

from __future__ import annotations

from contextvars import ContextVar

from penstock.request.api_keys import ApiKey
from penstock_gateway.http.errors import HTTPError, clip


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
