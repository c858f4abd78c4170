"""What a front end can be asked about its engine cores."""

from __future__ import annotations

import time
from collections import Counter

from penstock.client.adapters import AdapterDirectory
from penstock.client.dispatch import Dispatch
from penstock.client.engine_state import EngineState, combined, state_of
from penstock.client.fleet import Fleet
from penstock.client.live import LiveFeed
from penstock.client.model_text import ModelText
from penstock.protocol.to_frontend import Status, Welcome


class ClientView:
    """Reads what a client's dispatch and fleet know, and changes nothing."""

    _dispatch: Dispatch
    _fleet: Fleet

    @property
    def connected(self) -> bool:
        """Whether there is a session with an engine core."""
        return self._dispatch.connected.is_set()

    @property
    def welcome(self) -> Welcome | None:
        """What holds for all engine cores; None before the first."""
        return self._dispatch.model.welcome

    @property
    def text(self) -> ModelText | None:
        return self._dispatch.model.text

    @property
    def status(self) -> Status | None:
        """Status of all engine cores as if they were one, see `combined`."""
        return combined(self._fleet.sessions)

    @property
    def engines(self) -> list[EngineState]:
        """Each engine core that is dialled."""
        now = time.monotonic()
        return [state_of(session, now) for session in self._fleet]

    @property
    def routed(self) -> Counter[tuple[int, str]]:
        """Requests placed, by the engine's number and why it was chosen."""
        return self._dispatch.routed

    @property
    def moved(self) -> int:
        """Requests that were placed again, on another engine core."""
        return self._dispatch.moved

    @property
    def renumbered(self) -> int:
        """Requests that have tokens which were computed in another way than their next."""
        return self._dispatch.renumbered

    @property
    def adapters(self) -> AdapterDirectory:
        """Adapters by name."""
        return self._dispatch.adapters

    @property
    def live(self) -> LiveFeed:
        """What engine cores show of themselves to those who watch."""
        return self._dispatch.live

    @property
    def open_requests(self) -> int:
        return len(self._dispatch.requests())

    @property
    def last_reason(self) -> str:
        """Why the last session, or attempt at one, ended."""
        reasons = {s.endpoint: s.refused or s.transport.last_reason for s in self._fleet}
        told = {endpoint: reason for endpoint, reason in reasons.items() if reason}
        if len(self._fleet) == 1:
            return "".join(told.values())
        return "; ".join(f"{endpoint}: {reason}" for endpoint, reason in told.items())

    def status_age(self, now: float) -> float:
        """Seconds since an engine core last told its state; infinite when none did."""
        ages = (s.status_age(now) for s in self._fleet if s.connected)
        return min(ages, default=float("inf"))
