"""What a front end can be asked about its engine cores, and what they say of themselves: of each,
and of all as if they were one."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from penstock.client.adapters import AdapterDirectory
from penstock.client.control import hash_weights
from penstock.client.dispatch import Dispatch
from penstock.client.fleet import Fleet
from penstock.client.live import LiveFeed
from penstock.client.placement import placement_of
from penstock.client.served_model import ModelText
from penstock.client.session import EngineSession
from penstock.client.session_state import STATUS_MAX_AGE
from penstock.protocol.to_frontend import Status, Welcome
from penstock.request.terms import Terms


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """One engine core of a front end.

    index: its number here.  connected: there is a session, and it serves our model.  ready: takes
    and computes requests now; reason: why not.  open_requests: of this front end.  status: its last
    word, None without a session; status_age: seconds since then.  welcome: the last that came.
    """

    index: int
    endpoint: str
    connected: bool
    ready: bool
    reason: str
    draining: bool
    open_requests: int
    status: Status | None
    status_age: float
    welcome: Welcome | None


def state_of(session: EngineSession, now: float) -> EngineState:
    """State of an engine core at `now`, a moment of the monotonic clock."""
    status = session.status if session.answered else None
    return EngineState(
        index=session.index,
        endpoint=session.endpoint,
        connected=session.connected,
        ready=session.ready,
        reason="" if session.ready else _unready_reason(session),
        draining=session.draining,
        open_requests=len(session.open),
        status=status,
        status_age=session.status_age(now),
        welcome=session.welcome,
    )


def _unready_reason(session: EngineSession) -> str:
    if session.refused:
        return session.refused
    if not session.answered:
        reason = session.transport.last_reason
        return f"no session: {reason}" if reason else "no session"
    status = session.status
    if status is None or not session.fresh:
        return f"it has not reported its state for {STATUS_MAX_AGE:g} s"
    if status.draining:
        return "it is draining"
    return status.reason or "it is not ready"


def combined(sessions: Sequence[EngineSession]) -> Status | None:
    """All connected engine cores as if they were one: ready if one is, draining if all are; counts
    are sums. None where none has reported its state."""
    statuses = _statuses(sessions)
    if not statuses:
        return None
    if len(statuses) == 1:
        return statuses[0]
    serving = any(status.ready and not status.draining for status in statuses)
    reasons = (status.reason for status in statuses if status.reason)
    # One whose worker is away has none to tell, and gets no request.
    fingerprints = {status.fingerprint for status in statuses if status.fingerprint}
    arithmetics = arithmetics_of(sessions)

    def total(field: str) -> int:
        return sum(getattr(status, field) for status in statuses)

    return Status(
        ready=serving,
        reason="" if serving else next(reasons, ""),
        # Before a request is placed, it isn't known which of several it will be.
        fingerprint=fingerprints.pop() if len(fingerprints) == 1 else None,
        arithmetic=arithmetics[0] if len(arithmetics) == 1 else (),
        waiting=total("waiting"),
        running=total("running"),
        blocks_total=total("blocks_total"),
        blocks_free=total("blocks_free"),
        block_size=statuses[0].block_size,
        steps=total("steps"),
        preemptions=total("preemptions"),
        # The same front ends dial all of them.
        frontends=max(status.frontends for status in statuses),
        workers=total("workers"),
        draining=all(status.draining for status in statuses),
        blocks_cached=total("blocks_cached"),
        compute_seconds=sum(status.compute_seconds for status in statuses),
        tokens_computed=total("tokens_computed"),
        tokens_generated=total("tokens_generated"),
        step_tokens=tuple(
            map(sum, zip(*(status.step_tokens for status in statuses), strict=False))
        ),
        host_blocks=total("host_blocks"),
        prefix_caching=statuses[0].prefix_caching,
        media_items_encoded=total("media_items_encoded"),
        media_items_found=total("media_items_found"),
        media_bytes=total("media_bytes"),
        drafts=total("drafts"),
        drafted_tokens=total("drafted_tokens"),
        kept_tokens=total("kept_tokens"),
        # Any of them may get the request.
        aligns=all(status.aligns for status in statuses),
        paused=all(status.paused for status in statuses),
    )


def arithmetics_of(sessions: Sequence[EngineSession]) -> tuple[tuple[str, ...], ...]:
    """Each Status.arithmetic that a connected engine core tells, once, in order."""
    return tuple(sorted({status.arithmetic for status in _statuses(sessions) if status.arithmetic}))


def _statuses(sessions: Sequence[EngineSession]) -> list[Status]:
    """Those of connected engine cores: the fresh ones, or where none is, all."""
    reporting = [s for s in sessions if s.connected and s.status is not None]
    reporting = [s for s in reporting if s.fresh] or reporting
    return [s.status for s in reporting if s.status is not None]


class ClientView:
    """Reads what a client's dispatch and fleet know, and changes nothing."""

    _dispatch: Dispatch
    _fleet: Fleet

    @property
    def connected(self) -> bool:
        """Whether there is a session with an engine core."""
        return self._dispatch.connected.is_set()

    @property
    def answered(self) -> bool:
        """Whether an engine core has answered, also while its tokenizer is still being read."""
        return any(session.transport.opened for session in self._fleet)

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

    async def status_when(self, suits: Callable[[Status], bool], seconds: float) -> Status | None:
        """The status once it suits; after so many seconds, as it is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while (status := self.status) is None or not suits(status):
                    await self._fleet.next_status()
        return self.status

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
    def refused(self) -> int:
        """Requests that ended as no engine core computes in the way in which they must be."""
        return self._dispatch.waiting_room.refused

    @property
    def fingerprints(self) -> set[str]:
        """What engine cores compute with that are there."""
        return self._fleet.fingerprints()

    def lately(self) -> set[str]:
        """What engine cores compute with, or did that were there a moment ago and may come back."""
        now = time.monotonic()
        gone = {s.former for s in self._fleet if s.former is not None and s.may_tell(now)}
        return self._fleet.fingerprints() | gone

    @property
    def arithmetics(self) -> tuple[tuple[str, ...], ...]:
        """Each arithmetic of engine cores that are there, see Status.arithmetic; one where they all
        compute alike."""
        return arithmetics_of(self._fleet.sessions)

    @property
    def count(self) -> int:
        """Engine cores that are dialled."""
        return len(self._fleet)

    @property
    def undecided(self) -> int:
        """Returns the number of engine cores whose fingerprint isn't known yet, but may soon be."""
        now = time.monotonic()
        return sum(session.may_tell(now) for session in self._fleet)

    async def next_status(self) -> None:
        """Waits until an engine core tells its state."""
        await self._fleet.next_status()

    def fingerprint_for(self, prompt_token_ids: list[int], terms: Terms) -> str | None:
        """Returns what a request that came now would be computed with; None: not known yet."""
        return self._dispatch.fingerprint_for(placement_of(prompt_token_ids, terms))

    @property
    def adapters(self) -> AdapterDirectory:
        """Adapters by name."""
        return self._dispatch.adapters

    @property
    def live(self) -> LiveFeed:
        """What engine cores show of themselves to those who watch."""
        return self._dispatch.live

    @property
    def weights(self) -> set[str]:
        """Digests of the weights that engine cores have that are there."""
        computing = (session.computing for session in self._fleet if session.connected)
        return {each.weights for each in computing if each is not None and each.weights is not None}

    async def hash_weights(self, weights: str | None = None) -> dict[str, str]:
        """SHA-256 of each file of weights, see `control.hash_weights`."""
        return await hash_weights(self._fleet.sessions, weights)

    @property
    def open_requests(self) -> int:
        return len(self._dispatch.requests())

    @property
    def last_reason(self) -> str:
        """Why the last session, or attempt at one, ended."""
        reasons = {s.endpoint: s.refused or s.transport.last_reason for s in self._fleet}
        given = {endpoint: reason for endpoint, reason in reasons.items() if reason}
        if len(self._fleet) == 1:
            return "".join(given.values())
        return "; ".join(f"{endpoint}: {reason}" for endpoint, reason in given.items())

    def status_age(self, now: float) -> float:
        """Seconds since an engine core last reported its state; infinite if none has."""
        ages = (s.status_age(now) for s in self._fleet if s.connected)
        return min(ages, default=float("inf"))
