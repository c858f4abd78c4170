"""The addresses of engine cores: the list that a front end is given, and names that stand for
several."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from penstock.errors import InvalidRequest
from penstock.process import logs

log = logs.get(__name__)

MAX_ENGINES = 64
"""Engine cores that a front end dials, at most."""

RESOLVE_INTERVAL = 5.0
"""Seconds between two looks at a name's addresses."""

_ALLOWED = "tcp://HOST:PORT, ipc://PATH or dns://NAME:PORT"
_HOST_PORT = re.compile(r"^(\[[0-9a-fA-F:.%\w]+\]|[^\s:/\[\],]+):(\d{1,5})$")

Resolver = Callable[[str, int], list[str]]
"""The endpoints that a name and a port stand for. It may block; raises OSError."""


@dataclass(frozen=True, slots=True)
class DnsName:
    """Every address of `host` is an engine core's."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Endpoints:
    """fixed: as they were given, in order.  names: those to be resolved."""

    fixed: tuple[str, ...]
    names: tuple[DnsName, ...] = ()


def parse_endpoints(text: str) -> Endpoints:
    """A list with commas. Raises InvalidRequest that names what is wrong with it."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > MAX_ENGINES:
        raise _wrong(f"{len(parts)} endpoints; at most {MAX_ENGINES} are allowed")
    fixed: list[str] = []
    names: list[DnsName] = []
    for part in parts:
        scheme, _, rest = part.partition("://")
        if scheme == "ipc" and rest:
            fixed.append(part)
        elif scheme == "tcp":
            _host_port(part, rest)
            fixed.append(part)
        elif scheme == "dns":
            names.append(DnsName(*_host_port(part, rest)))
        else:
            raise _wrong(f"{part!r} is not an endpoint; allowed: {_ALLOWED}")
    every = [*fixed, *names]
    twice = next((each for each in every if every.count(each) > 1), None)
    if twice is not None:
        raise _wrong(f"{twice!r} appears twice")
    return Endpoints(tuple(fixed), tuple(names))


def _host_port(part: str, rest: str) -> tuple[str, int]:
    match = _HOST_PORT.match(rest)
    if match is None or not 1 <= int(match[2]) <= 65_535:
        raise _wrong(f"{part!r} is not an endpoint; allowed: {_ALLOWED}, with a port of 1 to 65535")
    return match[1], int(match[2])


def is_named(endpoint: str) -> bool:
    """Whether its host is a name that must be resolved."""
    scheme, _, rest = endpoint.partition("://")
    if scheme != "tcp":
        return False
    host = rest.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


def _wrong(what: str) -> InvalidRequest:
    return InvalidRequest(f"engine endpoint: {what}", param="engine_endpoint")


def resolve(host: str, port: int) -> list[str]:
    """Asks the system's resolver. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = {str(address[0]) for _, _, _, _, address in found}
    # As numbers: every gateway has them in the same order.
    ordered = sorted(addresses, key=lambda text: (":" in text, _as_number(text)))
    return [f"tcp://[{a}]:{port}" if ":" in a else f"tcp://{a}:{port}" for a in ordered]


def _as_number(address: str) -> int:
    return int(ipaddress.ip_address(address.partition("%")[0]))


async def follow(
    name: DnsName,
    resolver: Resolver,
    found: Callable[[list[str]], Awaitable[None]],
    interval: float = RESOLVE_INTERVAL,
) -> None:
    """Tells `found` the name's endpoints, again and again, for ever. While it can't be resolved,
    nothing is told: what was known may well be there still."""
    trouble = ""
    while True:
        try:
            endpoints = await _in_thread(resolver, name.host, name.port)
        except OSError as error:
            if str(error) != trouble:
                trouble = str(error)
                log.warning("a name can't be resolved", name=name.host, reason=trouble)
        else:
            trouble = ""
            await found(endpoints)
        await asyncio.sleep(interval)


async def _in_thread(resolver: Resolver, host: str, port: int) -> list[str]:
    """In a thread that nobody waits for at the end: a resolver without an answer takes its time,
    and an executor's threads are joined when the interpreter leaves."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def deliver(endpoints: list[str], error: OSError | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(endpoints)

    def ask() -> None:
        endpoints: list[str] = []
        failure: OSError | None = None
        try:
            endpoints = resolver(host, port)
        except (OSError, UnicodeError) as error:  # A label that is too long is a UnicodeError.
            failure = error if isinstance(error, OSError) else OSError(str(error))
        try:
            loop.call_soon_threadsafe(deliver, endpoints, failure)
        except RuntimeError:
            pass  # The loop has ended: nobody waits.

    threading.Thread(target=ask, daemon=True, name="resolver").start()
    return await answer
