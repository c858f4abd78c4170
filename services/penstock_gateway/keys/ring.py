"""The API keys in force, looked up by digest, and who sent the request that is being handled.

The caller is kept in a context variable, so that it reaches everything that submits work for the
request, also in other tasks, and no endpoint can forget to pass it on."""

from __future__ import annotations

import asyncio
import os
from contextvars import ContextVar

from starlette.types import Scope

from penstock.config.settings import GatewayConfig
from penstock.errors import StartupError
from penstock.net.exposure import check_limits, configured_keys
from penstock.process import logs
from penstock.request.api_keys import ApiKey, digest_of
from penstock_gateway.http.errors import HTTPError, clip
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
        key = bearer(scope) or named_key(scope)
        if not key and scope["type"] == "websocket":
            key = key_of(scope)
        return self._by_digest.get(digest_of(key))

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


def bearer(scope: Scope) -> bytes:
    """The request's bearer key; empty without one, and with more than one Authorization."""
    found = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(found) != 1:
        return b""
    scheme, _, key = found[0].strip().partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def named_key(scope: Scope) -> bytes:
    """The key in x-api-key, where Anthropic's clients have it; empty without one, and with more
    than one."""
    found = [value for name, value in scope["headers"] if name == b"x-api-key"]
    return found[0].strip() if len(found) == 1 else b""


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
