"""Who may reach a server from a web browser, and control one that has no API keys.

A page of any site can send requests to a server on its reader's own machine. Without API keys it
could use it like the reader, so such a server answers only to host names that nobody else can have
point at it (against DNS rebinding), and to no page of another origin. A page doesn't know a key, so
requests to a server with keys need neither rule; WebSockets keep the second one.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Iterable

from starlette.types import Scope

from penstock.config.settings import GatewayConfig
from penstock.errors import StartupError
from penstock.net.exposure import is_loopback
from penstock_gateway.http.cors import names
from penstock_gateway.http.errors import HTTPError, clip
from penstock_gateway.http.operations import Operation

PRIVATE_SUFFIXES = (".localhost", ".local", ".internal", ".home.arpa", ".svc")
"""Ends of names that public DNS never answers (RFC 6761, 6762, 8375, ICANN's .internal), and of
Kubernetes services."""
_MOST_REMEMBERED = 1024
"""Host headers whose answer is kept."""
_HOST = re.compile(
    r"(?:\[(?P<v6>[0-9a-f:.]+(?:%[\w.~-]+)?)\]|(?P<name>[a-z0-9_.-]+))(?::[0-9]{0,5})?",
    re.IGNORECASE | re.ASCII,
)
_LABEL = re.compile(r"[a-z0-9_-]+", re.ASCII)
_ALLOWED = re.compile(r"\*|(\*?\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.ASCII)
_WEB_SCHEMES = (b"http:", b"https:", b"file:", b"null")
"""Beginnings of the origins that a page can have. Those of installed programs and of browsers'
extensions have schemes of their own, such as vscode-webview, tauri or chrome-extension."""
_ASKED = frozenset((b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest"))


class Door:
    """Lets requests in, or refuses them, before anything is routed. What its operation calls open
    tells and changes nothing of this server, and is let in always."""

    def __init__(
        self, config: GatewayConfig, operations: Iterable[Operation], *, has_keys: bool
    ) -> None:
        """Raises StartupError for names in the settings that are none."""
        operations = list(operations)
        self._has_keys = has_keys
        self._hosts = own_hosts(config)
        self._origins = frozenset(
            each.encode() for each in names("allowed_origins", config.allowed_origins)
        )
        self._any_origin = b"*" in self._origins
        self._remote_control = config.allow_remote_control
        self._open = frozenset(each.path for each in operations if each.access == "open")
        self._control = frozenset(each.path for each in operations if each.controls)

    def check(self, scope: Scope) -> None:
        """Raises HTTPError 403."""
        of_http = scope["type"] == "http"
        if of_http and (self._has_keys or scope["path"] in self._open):
            return
        headers = {name: value for name, value in scope["headers"] if name in _ASKED}
        host = headers.get(b"host", b"")
        if not self._has_keys and not self._hosts(host):
            raise _unknown_host(host)
        if not self._any_origin:
            self._check_origin(headers, host, safe=scope.get("method") in ("GET", "HEAD"))
        if of_http and not self._remote_control and scope["path"] in self._control:
            _check_peer(scope)

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
            raise _foreign("another site")
        if origin in self._origins or not origin.startswith(_WEB_SCHEMES):
            return
        # The browser's own word is what counts behind a proxy that replaces Host.
        if site == b"same-origin" or (host and origin.partition(b"://")[2] == host.lower()):
            return
        raise _foreign(clip(origin.decode("latin-1")))


def own_hosts(config: GatewayConfig) -> Callable[[bytes], bool]:
    """Whether a Host header names this server. Raises StartupError for a name that is none."""
    allowed = [each.lower() for each in names("allowed_hosts", config.allowed_hosts)]
    for each in allowed:
        if not _ALLOWED.fullmatch(each):
            raise StartupError(
                f"--allowed-hosts {each}: must be a host name without scheme and port, "
                "*.DOMAIN for all names below a domain, or * for any"
            )
    if "*" in allowed:
        return lambda host: True
    known = {socket.gethostname().lower(), config.host.lower()}
    known |= {each for each in allowed if not each.startswith(("*", "."))}
    suffixes = (*PRIVATE_SUFFIXES, *(f".{e.lstrip('*.')}" for e in allowed if e[0] in "*."))
    remembered: dict[bytes, bool] = {}

    def is_own(host: bytes) -> bool:
        found = remembered.get(host)
        if found is None:
            found = _is_own(host.decode("latin-1"), known, suffixes)
            if len(remembered) < _MOST_REMEMBERED and len(host) < 256:
                remembered[host] = found
        return found

    return is_own


def _is_own(host: str, known: set[str], suffixes: tuple[str, ...]) -> bool:
    """An address can't be made to point elsewhere, and neither can a name of one label, which no
    public DNS answers. Without a host it is no browser that asks."""
    if not host:
        return True
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = (match["v6"] or match["name"]).lower().removesuffix(".")
    if name in known or _LABEL.fullmatch(name) or name.endswith(suffixes):
        return True
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _check_peer(scope: Scope) -> None:
    """A server without keys is controlled from its own machine. Requests without an address come
    over a Unix socket, or from this process itself."""
    client = scope.get("client")
    if client is None or is_loopback(client[0].removeprefix("::ffff:")):
        return
    raise _refused(
        f"{scope['path']} controls this server, which has no API keys: it is allowed from the "
        "server's own machine, over a loopback address. The server's operator can set --api-keys, "
        "and then an admin's key is allowed from anywhere, or --allow-remote-control",
        "remote_control_not_allowed",
    )


def _unknown_host(host: bytes) -> HTTPError:
    name = clip(host.decode("latin-1"))
    return _refused(
        f"this server has no API keys, and the request's Host, {name}, is not one of its names: a "
        "web page might have the name point here. Use an IP address or localhost, or have the "
        "server's operator allow the name with --allowed-hosts, or set --api-keys",
        "host_not_allowed",
    )


def _foreign(origin: str) -> HTTPError:
    return _refused(
        f"this request comes from a web page of {origin}, whose origin is not allowed here; the "
        "server's operator can allow it with --allowed-origins",
        "origin_not_allowed",
    )


def _refused(message: str, code: str) -> HTTPError:
    return HTTPError(403, message, type="permission_error", code=code)
