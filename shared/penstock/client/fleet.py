"""The engine cores that a front end dials: the endpoints it was given, and those that names stand
for."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from penstock.client.placement import OpenRequest
from penstock.client.session import EngineSession
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
    """Calls `found` with the name's endpoints, repeatedly and for ever. While the name can't be
    resolved it isn't called, as the known endpoints may still be there."""
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
    """Resolves the host in a thread that isn't joined at the end: a resolver without an answer
    takes its time, and an executor's threads are joined when the interpreter leaves."""
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
            pass  # The loop has ended, so nothing waits.

    threading.Thread(target=ask, daemon=True, name="resolver").start()
    return await answer


class Fleet:
    """Sessions, in the order of their numbers. A number is free again when its session is dropped.

    make: a session with a number and an endpoint.  on_dropped: called with each that is
    gone for good.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        make: Callable[[int, str], EngineSession],
        on_dropped: Callable[[EngineSession], None],
        resolver: Resolver,
        interval: float = RESOLVE_INTERVAL,
    ) -> None:
        self._endpoints = endpoints
        self._make = make
        self._on_dropped = on_dropped
        self._resolver = resolver
        self._interval = interval
        self._sessions: list[EngineSession] = []
        self._addresses: dict[DnsName, list[str]] = {}
        self._following: list[asyncio.Task[None]] = []
        self._too_many = False
        self._reported = asyncio.Event()
        """Set when the next status comes, whichever engine core's it is."""

    def __iter__(self) -> Iterator[EngineSession]:
        return iter(self._sessions)

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def sessions(self) -> list[EngineSession]:
        """Sessions of now: the list may be kept."""
        return list(self._sessions)

    def status_told(self) -> None:
        """Called when an engine core has reported its state."""
        self._reported.set()
        self._reported = asyncio.Event()

    async def next_status(self) -> None:
        """Waits until one of them tells its state."""
        await self._reported.wait()

    def start(self) -> None:
        """Begins to dial."""
        if self._sessions or self._following:
            return
        for endpoint in self._endpoints.fixed:
            self._dial(endpoint)
        for name in self._endpoints.names:
            task = asyncio.create_task(self._follow(name))
            self._following.append(task)

    async def stop(self) -> None:
        """Leaves all of them in order."""
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)
        for session in self.sessions:
            await session.stop()

    def close(self) -> None:
        """Closes for who can't wait."""
        if asyncio._get_running_loop() is not None:
            for task in self._following:
                task.cancel()
        for session in self._sessions:
            session.close()

    async def _follow(self, name: DnsName) -> None:
        async def found(endpoints: list[str]) -> None:
            self.found(name, endpoints)

        await follow(name, self._resolver, found, self._interval)

    def found(self, name: DnsName, endpoints: list[str]) -> None:
        """The addresses of a name, as they are now."""
        self._addresses[name] = endpoints
        wanted = dict.fromkeys(self._endpoints.fixed)
        for addresses in self._addresses.values():
            wanted.update(dict.fromkeys(addresses))
        if len(wanted) > MAX_ENGINES and not self._too_many:
            log.warning("more engine cores than are dialled", found=len(wanted), most=MAX_ENGINES)
        self._too_many = len(wanted) > MAX_ENGINES
        kept = list(wanted)[:MAX_ENGINES]
        for session in self._sessions:
            gone = session.endpoint not in kept
            if gone != session.retired:
                log.info("engine core's address", endpoint=session.endpoint, gone=gone)
            session.retired = gone
        known = {session.endpoint for session in self._sessions}
        for endpoint in kept:
            # Those that leave still have open requests: there is a bound on both together.
            if endpoint not in known and len(self._sessions) < 2 * MAX_ENGINES:
                self._dial(endpoint)
        self.drop_retired()

    def _dial(self, endpoint: str) -> None:
        taken = {session.index for session in self._sessions}
        index = next(number for number in range(2 * MAX_ENGINES) if number not in taken)
        session = self._make(index, endpoint)
        self._sessions.append(session)
        self._sessions.sort(key=lambda each: each.index)
        session.start()

    def drop_retired(self) -> None:
        """Forgets those whose address is gone and that have nothing open any more."""
        for session in self.sessions:
            if session.retired and not session.open:
                self._sessions.remove(session)
                session.close()
                self._on_dropped(session)

    def candidates(
        self, but: EngineSession | None = None, only: str | None = None
    ) -> list[EngineSession]:
        """Engine cores that a request may go to, of the best kind that there is: ready, and awake
        or with the others full; not draining; connected. only: the fingerprint that it must be
        computed with; where none has it, one that hasn't reported its own yet may."""
        connected = [s for s in self._sessions if s.connected and s is not but]
        if only is not None:
            alike = [s for s in connected if s.fingerprint == only]
            connected = alike or [s for s in connected if s.fingerprint is None]
        if len(connected) > 1:
            staying = [s for s in connected if not s.draining and not s.retired]
            connected = _awake([s for s in staying if s.ready]) or staying or connected
            # Those for prompts alone serve everything where there are no others.
            connected = [s for s in connected if not s.prefills_from] or connected
        return connected

    def fingerprints(self) -> set[str]:
        """What engine cores compute with that are there."""
        return {s.fingerprint for s in self._sessions if s.connected and s.fingerprint is not None}

    def may_come(self, fingerprint: str, now: float) -> bool:
        """Whether one computes with it, or may say soon that it does."""
        return any(s.fingerprint == fingerprint or s.may_tell(now) for s in self._sessions)

    def take_away(self, session: EngineSession, most: int) -> list[OpenRequest]:
        """Takes up to `most` requests from an engine core that hands over. Returns what is to be
        submitted again: none where no other one is ready that computes alike."""
        others = self.candidates(session, session.fingerprint)
        if not any(
            each.ready and not each.prefills_from and each.fingerprint == session.fingerprint
            for each in others
        ):
            return []
        unfinished = (request for request in session.open.values() if not request.finished)
        return [session.give_up(request) for request in list(islice(unfinished, most))]


def _awake(ready: list[EngineSession]) -> list[EngineSession]:
    """Engine cores whose models needn't be loaded first, while one of them has nothing waiting;
    else all: so much work is worth the memory of one more."""
    awake = [session for session in ready if not session.sleeping]
    return awake if any(session.keeps_up for session in awake) else ready
