"""What happens to a fleet while requests come: upgrades, losses, scaling."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from penstock.errors import InvalidRequest
from penstock_planning.cells.fleet import Seat, SimulatedCells
from penstock_planning.simulate.fields import fields_of, made_of

Seconds = Annotated[float, Meta(ge=0, le=1e7)]
Count = Annotated[int, Meta(ge=1, le=100_000)]


class Stage(Protocol):
    """What a happening can do. Times are seconds from the start."""

    fleet: SimulatedCells

    def later(self, at: float, act: Callable[[float], None]) -> None:
        """Calls `act` with the time when it has come, unless all requests have ended before."""

    def stop(self, seat: Seat, now: float, after: float) -> None:
        """The seat's engine core is gone; its requests go on elsewhere `after` seconds later."""

    def start(self, seat: Seat) -> None:
        """An engine core takes the seat."""


class RollingUpgrade(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From `at` on, every cell replaces its engine cores, `abreast` at a time; each is away for
    `away` seconds. Before that it hands over what it has."""

    at: Seconds
    away: Seconds = 20.0
    abreast: Count = 1

    def begin(self, stage: Stage) -> None:
        """Plans the first turn of each cell."""
        for group in stage.fleet.groups:
            there = [seat for seat in group if seat.engine is not None]
            turns = [there[n : n + self.abreast] for n in range(0, len(there), self.abreast)]
            stage.later(self.at, self._turn(stage, iter(turns)))

    def _turn(self, stage: Stage, turns: Iterator[list[Seat]]) -> Callable[[float], None]:
        def act(now: float) -> None:
            seats = next(turns, [])
            for seat in seats:
                stage.stop(seat, now, 0.0)
            if seats:
                stage.later(now + self.away, lambda then: back(seats, then))

        def back(seats: list[Seat], now: float) -> None:
            for seat in seats:
                stage.start(seat)
            act(now)

        return act


class CellLost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At `at`, all engine cores of a cell are gone, for `away` seconds. Clients with a stream there
    retry `noticed` seconds later."""

    at: Seconds
    away: Seconds = 120.0
    noticed: Seconds = 1.0
    cell: Annotated[int, Meta(ge=0)] = 0

    def begin(self, stage: Stage) -> None:
        """Plans it."""
        if self.cell >= len(stage.fleet.groups):
            raise InvalidRequest(f"there is no cell {self.cell}; they count from 0")
        stage.later(self.at, lambda now: self._go(stage, now))

    def _go(self, stage: Stage, now: float) -> None:
        lost = [seat for seat in stage.fleet.groups[self.cell] if seat.engine is not None]
        for seat in lost:
            stage.stop(seat, now, self.noticed)

        def back(_: float) -> None:
            for seat in lost:
                stage.start(seat)

        stage.later(now + self.away, back)


class Scaling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Engine cores that are added as KEDA does it by the chart's queueScaling: each cell begins
    with `start` engine cores, and every `polling` seconds gets one for `each` requests that it has
    open, at most twice as many within a minute. They are there `lag` seconds later. None leaves."""

    start: Count = 1
    each: Count = 64
    polling: Annotated[float, Meta(ge=1, le=3600)] = 15.0
    lag: Seconds = 60.0

    at = 0.0

    def begin(self, stage: Stage) -> None:
        """Leaves what is above `start` empty, and plans the first look."""
        for group in stage.fleet.groups:
            for seat in group[self.start :]:
                stage.stop(seat, 0.0, 0.0)
        for cell in stage.fleet.cells:
            seats = [seat for seat in stage.fleet.seats if seat.cell is cell]
            # With one router, the cells' turns are mixed, so that all grow alike.
            seats.sort(key=lambda seat: (seat.serial % len(stage.fleet.groups[0]), seat.group))
            _Scaler(self, stage, seats).plan(0.0)


class _Scaler:
    """Follows one cell, or all of them where one router knows everybody."""

    def __init__(self, terms: Scaling, stage: Stage, seats: list[Seat]) -> None:
        self._terms, self._stage, self._seats = terms, stage, seats
        self._wanted = sum(seat.engine is not None for seat in seats)
        self._minute = (0.0, self._wanted)  # when it began, and what was wanted then

    def plan(self, now: float) -> None:
        self._stage.later(now + self._terms.polling, self._look)

    def _look(self, now: float) -> None:
        cell = self._seats[0].cell
        load = 0 if cell is None else cell.load
        if now - self._minute[0] >= 60.0:
            self._minute = (now, self._wanted)
        wanted = min(math.ceil(load / self._terms.each), 2 * self._minute[1], len(self._seats))
        if wanted > self._wanted:
            coming, self._wanted = self._seats[self._wanted : wanted], wanted
            self._stage.later(now + self._terms.lag, lambda then: self._come(coming))
        self.plan(now)

    def _come(self, coming: list[Seat]) -> None:
        for seat in coming:
            self._stage.start(seat)


Happening = RollingUpgrade | CellLost | Scaling
KINDS: dict[str, type[Happening]] = {
    "upgrade": RollingUpgrade,
    "lost": CellLost,
    "scaling": Scaling,
}
"""Kinds of happenings, by the names of the command line."""


def parse_happening(text: str) -> Happening:
    """`lost:at=300,away=120`. Raises InvalidRequest, which names what isn't allowed."""
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        raise InvalidRequest(
            f"nothing that happens is called {kind!r}; allowed: {', '.join(KINDS)}"
        )
    return made_of(fields_of(rest), KINDS[kind], repr(text))
