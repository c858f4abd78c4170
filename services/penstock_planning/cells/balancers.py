"""Which cell gets a request: what a load balancer in front of cells decides by."""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from penstock.client.routing import load_bound
from penstock.errors import InvalidRequest

POINTS_OF_WEIGHT = 16
"""Points on the circle that haproxy gives a server for each unit of its weight."""

WEIGHT = 64
"""That of a cell in deploy/haproxy/cells.cfg."""

CELL_LOAD = 2.0
"""How far above the mean load a cell may be before it hands on what comes next: what
deploy/haproxy/cells.cfg has without PENSTOCK_CELL_LOAD."""


class BalancedCell(Protocol):
    """What a balancer sees of a cell. index: its number.  load: its open requests.  ready: whether
    it takes new ones."""

    @property
    def index(self) -> int: ...

    @property
    def load(self) -> int: ...

    @property
    def ready(self) -> bool: ...


ACell = TypeVar("ACell", bound=BalancedCell)


class Balancer(Protocol):
    """A policy.  grouped: whether each cell's gateways know only its own engine cores."""

    grouped: bool

    def choose(self, belongs: str, cells: Sequence[ACell]) -> ACell | None:
        """The cell that gets a request; None while none is ready.  belongs: what the request
        belongs to: a session, else a tenant."""
        ...


class HashedCells:
    """Consistent hashing with bounded loads: a cell has `points` places on a circle, and what
    belongs together goes to the next place clockwise whose cell is ready and has less than
    `load` times the mean."""

    grouped = True

    def __init__(self, points: int = WEIGHT * POINTS_OF_WEIGHT, load: float = CELL_LOAD) -> None:
        self._points, self._load = points, load
        self._places: list[tuple[int, int]] = []  # (place, cell)
        self._num_cells = 0

    def choose(self, belongs: str, cells: Sequence[ACell]) -> ACell | None:
        if self._num_cells != len(cells):
            self._place(len(cells))
        ready = [cell.load for cell in cells if cell.ready]
        if not ready:
            return None
        bound = load_bound(ready, self._load)
        places = self._places
        first = bisect.bisect(places, (_hash(belongs), -1))
        for step in range(len(places)):
            cell = cells[places[(first + step) % len(places)][1]]
            if cell.ready and cell.load < bound:
                return cell
        return None

    def _place(self, num_cells: int) -> None:
        self._num_cells = num_cells
        self._places = sorted(
            (_hash(f"cell {cell} point {point}"), cell)
            for cell in range(num_cells)
            for point in range(self._points)
        )


class CellsInTurn:
    """One cell after another, whatever a request belongs to."""

    grouped = True

    def __init__(self) -> None:
        self._next = 0

    def choose(self, belongs: str, cells: Sequence[ACell]) -> ACell | None:
        for _ in cells:
            cell = cells[self._next % len(cells)]
            self._next += 1
            if cell.ready:
                return cell
        return None


class OneRouter:
    """No cells: every gateway knows every engine core, and chooses among all."""

    grouped = False

    def choose(self, belongs: str, cells: Sequence[ACell]) -> ACell | None:
        return next((cell for cell in cells if cell.ready), None)


BALANCERS: dict[str, Callable[[], Balancer]] = {
    "hashed": HashedCells,
    "hashed-coarsely": lambda: HashedCells(points=POINTS_OF_WEIGHT),
    "one-router": OneRouter,
    "round-robin": CellsInTurn,
}
"""Ways to choose a cell, by the names of the command line."""


def make_balancer(name: str) -> Balancer:
    """Raises InvalidRequest for a name that isn't in BALANCERS."""
    if name not in BALANCERS:
        known = ", ".join(BALANCERS)
        raise InvalidRequest(f"unknown way to choose a cell {name!r}; allowed: {known}")
    return BALANCERS[name]()


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
