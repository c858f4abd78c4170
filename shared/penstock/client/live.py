"""What engine cores show of themselves, for as long as somebody on this side watches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.protocol.from_frontend import FromFrontend, Watch
from penstock.protocol.live import Snapshot
from penstock.protocol.to_frontend import Welcome

LEASE = 15.0
RENEWAL = 5.0
"""Seconds that a lease on snapshots is for, and after which it is renewed: a front end that is
gone, or has forgotten to say that it watches no more, is soon shown nothing."""


@dataclass(slots=True)
class EngineShown:
    """One engine core. engine: its endpoint.  knows: whether it can show itself.
    at: when the snapshot came, on the caller's clock.  reason: why there is no session."""

    engine: str
    send: Callable[[FromFrontend], object] | None = None
    knows: bool = False
    snapshot: Snapshot | None = None
    at: float = 0.0
    reason: str = ""
    renew_at: float = 0.0

    @property
    def connected(self) -> bool:
        return self.send is not None


class LiveFeed:
    """One for all engines and all watchers of a front end: they share one lease on each engine.

    The owner of an engine's session calls this when the session opens and ends, passes its
    Snapshots, and calls `tick` at least every second.  While nobody watches, engines are sent
    nothing.
    """

    def __init__(self) -> None:
        self._engines: dict[str, EngineShown] = {}
        self._watchers: dict[int, Callable[[], None]] = {}
        self._last_watcher = 0

    def opened(self, engine: str, welcome: Welcome, send: Callable[[FromFrontend], object]) -> None:
        """Notes a session with an engine core. send: puts a message into it."""
        self._engines[engine] = shown = EngineShown(engine, send, welcome.live)
        if self._watchers:
            self._ask(shown, LEASE)
        self._tell()

    def ended(self, engine: str, reason: str) -> None:
        """The session is over; the engine may come back."""
        self._engines[engine] = EngineShown(engine, reason=reason)
        self._tell()

    def forget(self, engine: str) -> None:
        """The engine is none of ours any more."""
        if self._engines.pop(engine, None) is not None:
            self._tell()

    def take(self, engine: str, snapshot: Snapshot, now: float) -> None:
        """A snapshot has come."""
        shown = self._engines.get(engine)
        if shown is not None and self._watchers:
            shown.snapshot, shown.at = snapshot, now
            self._tell()

    def tick(self, now: float) -> None:
        """Renews the leases that are due."""
        if self._watchers:
            for shown in self._engines.values():
                if shown.renew_at <= now:
                    shown.renew_at = now + RENEWAL
                    self._ask(shown, LEASE)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Begins to watch; returns what ends it. changed: called when there is something new to
        see in `engines`; it must not raise."""
        self._last_watcher += 1
        number = self._last_watcher
        self._watchers[number] = changed
        if len(self._watchers) == 1:
            for shown in self._engines.values():
                self._ask(shown, LEASE)

        def stop() -> None:
            if self._watchers.pop(number, None) is not None and not self._watchers:
                for shown in self._engines.values():
                    shown.snapshot = None
                    self._ask(shown, 0.0)

        return stop

    @property
    def engines(self) -> list[EngineShown]:
        """All known engine cores, ordered by endpoint."""
        return sorted(self._engines.values(), key=lambda shown: shown.engine)

    def _ask(self, shown: EngineShown, seconds: float) -> None:
        if shown.send is not None and shown.knows:
            shown.send(Watch(seconds))

    def _tell(self) -> None:
        for changed in list(self._watchers.values()):
            changed()
