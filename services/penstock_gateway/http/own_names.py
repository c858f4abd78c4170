"""The host names by which a server without API keys may be asked: those of its own machine, and
what the operator allows.

A browser takes a page and what the page asks for from whatever address a name has at the time. So
any name that others can have point at this machine would let their pages in (DNS rebinding): a name
of public DNS, but also one of a single label or below .local, which any neighbour in the network
answers by mDNS, LLMNR or NetBIOS.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import socket
import threading
from collections.abc import Callable

import msgspec

from penstock.config.settings import GatewayConfig
from penstock.errors import StartupError

OF_CONTAINERS = frozenset(
    ("host.docker.internal", "gateway.docker.internal", "host.containers.internal")
)
"""What Docker and Podman call the machine inside its containers."""
PATIENCE = 1.0
"""Seconds that the resolver has to say what this machine is called in full."""
_MOST_REMEMBERED = 1024
"""Host headers whose answer is kept."""
_HOST = re.compile(
    r"(?:\[(?P<v6>[0-9a-f:.]+(?:%[\w.~-]+)?)\]|(?P<name>[a-z0-9_.-]+))(?::[0-9]{0,5})?",
    re.IGNORECASE | re.ASCII,
)
_ALLOWED = re.compile(r"\*|(\*?\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.ASCII)


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
    known = {*machine_names(), config.host.lower()}
    known |= {each for each in allowed if not each.startswith(("*", "."))}
    suffixes = (".localhost", *(f".{e.lstrip('*.')}" for e in allowed if e[0] in "*."))
    remembered: dict[bytes, bool] = {}

    def is_own(host: bytes) -> bool:
        found = remembered.get(host)
        if found is None:
            found = _is_own(host.decode("latin-1"), known, suffixes)
            if len(remembered) < _MOST_REMEMBERED and len(host) < 256:
                remembered[host] = found
        return found

    return is_own


def machine_names() -> frozenset[str]:
    """Names of this machine, in lower case: with its domain and without, and by mDNS."""
    host = socket.gethostname().lower()
    label = host.partition(".")[0]
    full = full_name(host)
    # The resolver may know this address by somebody else's name.
    own = {full} if full.partition(".")[0] == label else set()
    return OF_CONTAINERS | {"localhost", host, label, f"{label}.local"} | own


@functools.lru_cache(maxsize=1)
def full_name(host: str) -> str:
    """What the resolver calls a machine, in lower case; empty if it doesn't say so in time. It asks
    DNS where no file says it, and a DNS that doesn't answer must not hold up a start."""
    found = [""]

    def look() -> None:
        found[0] = socket.getfqdn(host).lower()

    asking = threading.Thread(target=look, daemon=True)
    asking.start()
    asking.join(PATIENCE)
    return found[0]


def _is_own(host: str, known: set[str], suffixes: tuple[str, ...]) -> bool:
    """An address can't be made to point elsewhere. Without a host it is no browser that asks."""
    if not host:
        return True
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = (match["v6"] or match["name"]).lower().removesuffix(".")
    if name in known or name.endswith(suffixes):
        return True
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def names(setting: str, text: str) -> list[str]:
    """A JSON list of texts, or texts with commas. Raises StartupError."""
    if not text.lstrip().startswith("["):
        return [name.strip() for name in text.split(",") if name.strip()]
    try:
        return msgspec.json.decode(text, type=list[str])
    except msgspec.DecodeError as error:
        flag = setting.replace("_", "-")
        raise StartupError(f"--{flag} {text}: must be a JSON list of strings ({error})") from None
