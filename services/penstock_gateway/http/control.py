"""Who may control a server without API keys: clients on its own machine that are no page and no
browser's extension."""

from __future__ import annotations

import re
from functools import lru_cache

from starlette.types import Scope

from penstock.config.settings import GatewayConfig
from penstock.net.exposure import is_loopback
from penstock.process import logs
from penstock_gateway.http.errors import HTTPError, clip
from penstock_gateway.http.own_names import names

log = logs.get(__name__)

_EXTENSION = re.compile(r"([a-z0-9.+-]*-)?extension:", re.IGNORECASE)
"""Beginning of the origin of a browser's extension, whichever browser's."""


def check_control(scope: Scope, config: GatewayConfig, what: str) -> None:
    """Lets a request control a server without keys, which has been let in. what: it controls by,
    for the error.  Raises HTTPError 403."""
    for name, value in scope["headers"]:
        origin = value.decode("latin-1")
        if name == b"origin" and _EXTENSION.match(origin):
            allowed = names("allowed_origins", config.allowed_origins)
            if origin not in allowed and "*" not in allowed:
                raise foreign(clip(origin), "a browser's extension")
    if not config.allow_remote_control:
        _check_peer(scope, what)


def _check_peer(scope: Scope, what: str) -> None:
    """Requests without an address come over a Unix socket, or from this process itself."""
    client = scope.get("client")
    if client is None or is_loopback(client[0].removeprefix("::ffff:")):
        return
    raise refused(
        f"{what} controls this server, which has no API keys: it is allowed from the "
        "server's own machine, over a loopback address. The server's operator can set --api-keys, "
        "and then an admin's key is allowed from anywhere, or --allow-remote-control",
        "remote_control_not_allowed",
    )


def foreign(origin: str, kind: str = "a web page") -> HTTPError:
    """Returns error 403: the caller is not one of the server's own pages."""
    return refused(
        f"this request comes from {kind} of {origin}, whose origin is not allowed here; the "
        "server's operator can allow it with --allowed-origins",
        "origin_not_allowed",
    )


def refused(message: str, code: str) -> HTTPError:
    """403: not from there."""
    _say(message)
    return HTTPError(403, message, type="permission_error", code=code)


@lru_cache(maxsize=1024)
def _say(message: str) -> None:
    """Once for a name: who set the client up may not see its errors."""
    log.warning("request refused", reason=message)
