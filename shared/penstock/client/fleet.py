"""The engine cores that a front end dials: those it was given, and those that names stand for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from penstock.client.endpoints import (
    MAX_ENGINES,
    RESOLVE_INTERVAL,
    DnsName,
    Endpoints,
    Resolver,
    follow,
)
from penstock.client.session import EngineSession
from penstock.process import logs

log = logs.get(__name__)


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

    def __iter__(self) -> Iterator[EngineSession]:
        return iter(self._sessions)

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def sessions(self) -> list[EngineSession]:
        """Sessions of now: the list may be kept."""
        return list(self._sessions)

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
            # Those that leave still have what is open in them: there is a bound on both together.
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
        self, but: EngineSession | None = None, fingerprint: str | None = None
    ) -> list[EngineSession]:
        """Engine cores that a request may go to, of the best kind that there is: ready, and awake
        or with the others full; not draining; connected. fingerprint: of the request's tokens so
        far; those that compute alike are preferred, if there are any."""
        connected = [s for s in self._sessions if s.connected and s is not but]
        if len(connected) > 1:
            staying = [s for s in connected if not s.draining and not s.retired]
            connected = _awake([s for s in staying if s.ready]) or staying or connected
            # Those for prompts alone serve all where there is nobody else.
            connected = [s for s in connected if not s.prefills_from] or connected
        if fingerprint is not None and len(connected) > 1:
            connected = [s for s in connected if s.fingerprint == fingerprint] or connected
        return connected


def _awake(ready: list[EngineSession]) -> list[EngineSession]:
    """Engine cores whose models needn't be loaded first, while one of them has nothing waiting;
    else all: so much work is worth the memory of one more."""
    awake = [session for session in ready if not session.sleeping]
    return awake if any(session.keeps_up for session in awake) else ready
