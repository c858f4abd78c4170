"""Which models are loaded, and which makes way for which. No clock and no process in here: `now` is
a parameter, and what is to be done is returned.

A holder is a process that may have work for a model: a gateway. A model is granted to holders, and
ended only once all of them have left it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from penstock.protocol.from_supervisor import ModelState, Presence


@dataclass(frozen=True)
class PrepareModel:
    """Find out what the model is, and how large."""

    model: str


@dataclass(frozen=True)
class StartModel:
    model: str


@dataclass(frozen=True)
class StopModel:
    """End its processes: it is idle."""

    model: str


@dataclass(frozen=True)
class GrantModel:
    holder: int
    model: str


@dataclass(frozen=True)
class ReclaimModel:
    holder: int
    model: str


Action = PrepareModel | StartModel | StopModel | GrantModel | ReclaimModel


Mark = tuple[str, Presence, int]
"""A model, its presence, and how often it has failed."""

LOADED: frozenset[Presence] = frozenset(("starting", "ready", "closing", "stopping"))
"""States in which a model takes memory."""


@dataclass
class Resident:
    """One model. Times in seconds, on the caller's clock."""

    model: str
    pinned: bool
    presence: Presence = "absent"
    gib: float | None = None
    """GiB of memory that it counts for; None: not known before it is prepared."""
    reason: str = ""
    failures: int = 0
    retry_at: float = 0.0
    begun_at: float = 0.0
    ready_at: float = 0.0
    used_at: float = 0.0
    wanted_since: float | None = None
    wanting: set[int] = field(default_factory=set)
    holding: set[int] = field(default_factory=set)
    busy: set[int] = field(default_factory=set)

    @property
    def evictable(self) -> bool:
        return not self.pinned and self.presence in ("starting", "ready")


FIRST_RETRY = 5.0
"""Seconds after which a model that failed is tried again; they double with each failure."""
LAST_RETRY = 300.0
LOST_SECONDS = 5.0
"""Seconds for which a holder whose connection broke keeps what it holds: it is there, and comes
back; or it has died."""


class Residents:
    """limit: GiB of all that are loaded; None: no bound.  idle: seconds without work after which a
    model on demand goes; 0: never.  turn: seconds for which one with work stays.  load_timeout:
    seconds in which one must be ready."""

    def __init__(
        self,
        models: Sequence[tuple[str, bool]],
        *,
        limit: float | None,
        idle: float,
        turn: float,
        load_timeout: float,
    ) -> None:
        """models: names, and whether they are pinned."""
        self._all = {name: Resident(name, pinned) for name, pinned in models}
        self._limit = limit
        self._idle = idle
        self._turn = turn
        self._load_timeout = load_timeout
        self._lost: dict[int, float] = {}
        for resident in self._all.values():
            if resident.pinned:
                resident.wanted_since = -1.0  # Before anybody else's.

    def states(self, now: float) -> list[ModelState]:
        """States of all models, in their order."""
        return [
            ModelState(
                model=each.model,
                presence=each.presence,
                reason=each.reason,
                retry_after=max(0.0, each.retry_at - now) if each.presence == "failed" else 0.0,
                memory_gib=each.gib,
            )
            for each in self._all.values()
        ]

    def marks(self) -> list[Mark]:
        """Returns the states that holders are sent. They differ from before where holders must be
        notified again: also if one has failed again before anybody looked."""
        return [(each.model, each.presence, each.failures) for each in self._all.values()]

    def settled(self) -> bool:
        """Whether every pinned model is ready, or has failed."""
        return all(
            each.presence in ("ready", "failed") for each in self._all.values() if each.pinned
        )

    def failures(self) -> dict[str, str]:
        """Why models failed that have."""
        failed = [each for each in self._all.values() if each.presence == "failed"]
        return {each.model: each.reason for each in failed}

    # What holders say. A model that isn't known is theirs to be wrong about.

    def want(self, holder: int, model: str, now: float) -> None:
        resident = self._all.get(model)
        if resident is None:
            return
        resident.wanting.add(holder)
        if resident.wanted_since is None:
            resident.wanted_since = now

    def unwant(self, holder: int, model: str) -> None:
        resident = self._all.get(model)
        if resident is not None:
            resident.wanting.discard(holder)

    def work(self, holder: int, model: str, now: float, *, busy: bool) -> None:
        resident = self._all.get(model)
        if resident is None or holder not in resident.holding:
            return
        resident.used_at = now
        if busy:
            resident.busy.add(holder)
        else:
            resident.busy.discard(holder)

    def leave(self, holder: int, model: str, now: float) -> None:
        resident = self._all.get(model)
        if resident is not None:
            resident.holding.discard(holder)
            resident.busy.discard(holder)

    def lost(self, holder: int, now: float) -> None:
        """A holder's connection broke: it may come back."""
        self._lost[holder] = now

    def back(
        self, holder: int, holding: Sequence[str], busy: Sequence[str], now: float
    ) -> Iterator[Action]:
        """A holder has connected, for the first time or again. holding, busy: as it knows them; it
        has missed messages since its connection broke."""
        self._lost.pop(holder, None)
        for resident in self._all.values():
            resident.wanting.discard(holder)
            if resident.model not in holding:
                self.leave(holder, resident.model, now)
                continue
            if holder in resident.holding:
                self.work(holder, resident.model, now, busy=resident.model in busy)
            if holder not in resident.holding or resident.presence == "closing":
                yield ReclaimModel(holder, resident.model)

    def gone(self, holder: int) -> None:
        """A holder has ended, with all its work."""
        self._lost.pop(holder, None)
        for resident in self._all.values():
            for members in (resident.wanting, resident.holding, resident.busy):
                members.discard(holder)

    def seen(self, model: str, now: float) -> None:
        """Somebody finds its engine core ready."""
        resident = self._all.get(model)
        if resident is not None and resident.presence == "starting":
            resident.presence = "ready"
            resident.ready_at = resident.used_at = now
            resident.failures = 0

    def unload(self, model: str) -> Iterator[Action]:
        """Ends a model as soon as it is idle."""
        resident = self._all.get(model)
        if resident is not None and resident.evictable:
            yield from self._close(resident)

    # What became of actions.

    def prepared(self, model: str, gib: float) -> None:
        resident = self._all[model]
        resident.gib = gib
        resident.presence = "absent"
        resident.reason = ""

    def stopped(self, model: str, now: float) -> None:
        """The model's processes are gone, as was asked for."""
        resident = self._all[model]
        if resident.reason:
            self.failed(model, resident.reason, now)
        else:
            resident.presence = "absent"

    def failed(self, model: str, reason: str, now: float) -> None:
        """It can't be prepared or started, or has died for good; its processes are gone."""
        resident = self._all[model]
        resident.presence = "failed"
        resident.reason = reason
        wait = min(FIRST_RETRY * 2 ** min(resident.failures, 10), LAST_RETRY)
        resident.retry_at = now + wait
        resident.failures += 1
        resident.wanted_since = None
        for members in (resident.wanting, resident.holding, resident.busy):
            members.clear()

    def end(self, now: float) -> None:
        """Starts nothing any more: requests for models that aren't loaded get an error."""
        for resident in self._all.values():
            if resident.presence != "ready":
                self.failed(resident.model, "the server is shutting down", now)

    def decide(self, now: float) -> Iterator[Action]:
        """Returns what is to be done now. Called after each event, and every second or so."""
        for holder in [one for one, at in self._lost.items() if now - at >= LOST_SECONDS]:
            self.gone(holder)
        for resident in self._all.values():
            yield from self._look(resident, now)
        yield from self._make_room(now)

    def _look(self, resident: Resident, now: float) -> Iterator[Action]:
        presence = resident.presence
        if presence == "failed" and now >= resident.retry_at:
            if resident.pinned and resident.wanted_since is None:
                resident.wanted_since = -1.0
            if resident.wanted_since is not None:
                resident.presence = "absent"
        if resident.presence == "absent" and resident.gib is None and self._is_wanted(resident):
            resident.presence = "preparing"
            yield PrepareModel(resident.model)
        if presence in ("starting", "ready"):
            for holder in sorted(resident.wanting):
                resident.holding.add(holder)
                yield GrantModel(holder, resident.model)
            resident.wanting.clear()
            resident.wanted_since = None
            if self._is_late(resident, now):
                resident.presence = "stopping"
                resident.reason = f"it was not ready after {self._load_timeout:g} s"
                yield StopModel(resident.model)
            elif self._is_idle(resident, now):
                yield from self._close(resident)
        if resident.presence == "closing" and not resident.holding:
            resident.presence = "stopping"
            yield StopModel(resident.model)

    def _is_wanted(self, resident: Resident) -> bool:
        if not resident.pinned and not resident.wanting:
            resident.wanted_since = None  # Who wanted it has gone.
        return resident.wanted_since is not None

    def _is_idle(self, resident: Resident, now: float) -> bool:
        return bool(
            self._idle
            and resident.evictable
            and resident.presence == "ready"
            and not resident.busy
            and now - resident.used_at >= self._idle
        )

    def _is_late(self, resident: Resident, now: float) -> bool:
        """Whether it takes too long to become ready. No request ends with it: it had none."""
        loading = resident.presence == "starting" and not resident.pinned
        return loading and now - resident.begun_at >= self._load_timeout

    def _close(self, resident: Resident) -> Iterator[Action]:
        resident.presence = "closing"
        for holder in sorted(resident.holding):
            yield ReclaimModel(holder, resident.model)

    def _make_room(self, now: float) -> Iterator[Action]:
        """Starts what is wanted, in the order of the wanting, where there is room; else has others
        make way for the first of them. No model overtakes another: a large one would wait for
        ever."""
        waiting = [
            each
            for each in self._all.values()
            if each.presence == "absent" and each.gib is not None and self._is_wanted(each)
        ]
        for resident in sorted(waiting, key=lambda each: each.wanted_since or 0.0):
            if self._limit is not None and self._never_fits(resident, self._limit):
                reason = f"it needs {resident.gib:.2f} GiB; {self._limit:g} GiB are all there is"
                reason += " (--models-memory-gib), pinned models included"
                self.failed(resident.model, reason, now)
                continue
            need = self._used() + (resident.gib or 0.0) - (self._limit or float("inf"))
            if need <= 0:
                resident.presence, resident.reason = "starting", ""
                resident.begun_at = resident.used_at = now
                yield StartModel(resident.model)
                yield from self._look(resident, now)
                continue
            yield from self._evict(need - self._leaving(), now)
            return

    def _evict(self, need: float, now: float) -> Iterator[Action]:
        """need: GiB that have to become free."""
        idle_first = sorted(
            (each for each in self._all.values() if each.evictable),
            key=lambda each: (bool(each.busy), each.used_at),
        )
        for resident in idle_first:
            if need <= 0:
                return
            if resident.presence == "starting" or resident.busy:
                begun = resident.ready_at if resident.presence == "ready" else None
                if begun is None or now - begun < self._turn:
                    continue
            need -= resident.gib or 0.0
            yield from self._close(resident)
            yield from self._look(resident, now)

    def _never_fits(self, resident: Resident, limit: float) -> bool:
        """Whether there is no room for it though all others that may go were gone."""
        pinned = sum(
            each.gib or 0.0
            for each in self._all.values()
            if each.pinned and each is not resident and each.presence in LOADED
        )
        return pinned + (resident.gib or 0.0) > limit

    def _used(self) -> float:
        return sum(each.gib or 0.0 for each in self._all.values() if each.presence in LOADED)

    def _leaving(self) -> float:
        closing = ("closing", "stopping")
        return sum(each.gib or 0.0 for each in self._all.values() if each.presence in closing)
