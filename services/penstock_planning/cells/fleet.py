"""Engine cores in their cells, and who of them gets a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock_planning.cells.affinity import RememberedAffinity
from penstock_planning.cells.asks import Ask, placed_by
from penstock_planning.cells.balancers import Balancer


class CellEngine(Protocol):
    """An engine core, modelled or the production one.

    due: when it has to be advanced next.  open: its requests.  steps: that it has computed.
    """

    endpoint: str
    block_size: int
    due: float
    open: dict[int, Ask]

    @property
    def load(self) -> int: ...

    @property
    def steps(self) -> int: ...

    def submit(self, ask: Ask, now: float) -> None: ...

    def advance(self, now: float) -> list[Ask]: ...

    def lose(self, now: float) -> list[Ask]: ...


class Seat:
    """A place for an engine core. group: number of the cell that it stands in.  engine: None: there
    is none now."""

    __slots__ = ("cell", "engine", "group", "name", "serial")

    def __init__(self, serial: int, group: int, name: str) -> None:
        self.serial, self.group, self.name = serial, group, name
        self.engine: CellEngine | None = None
        self.cell: Cell | None = None


class Cell:
    """Engine cores that the same gateways know. load: open requests of all of them."""

    __slots__ = ("index", "load", "router")

    def __init__(self, index: int) -> None:
        self.index = index
        self.load = 0
        self.router: RememberedAffinity[CellEngine] = RememberedAffinity([])

    @property
    def ready(self) -> bool:
        """Whether somebody is there."""
        return bool(self.router.engines)


class SimulatedCells:
    """All of them.

    groups: seats of each cell, as they fail and are upgraded together.  cells: as the balancer
    sees them; one, where one router knows everybody.
    """

    def __init__(
        self,
        cells: int,
        replicas: int,
        balancer: Balancer,
        make: Callable[[int, str], CellEngine],
    ) -> None:
        self.balancer = balancer
        self._make = make
        self.groups = [
            [Seat(g * replicas + n, g, f"cell-{g}-engine-{n}") for n in range(replicas)]
            for g in range(cells)
        ]
        self.cells = [Cell(index) for index in range(cells if balancer.grouped else 1)]
        for seat in self.seats:
            seat.cell = self.cells[seat.group if balancer.grouped else 0]
        self._seat_of: dict[CellEngine, Seat] = {}
        self.steps_gone = 0
        """Steps of engine cores that are no more."""

    @property
    def seats(self) -> list[Seat]:
        return [seat for group in self.groups for seat in group]

    @property
    def num_steps(self) -> int:
        """Steps of all engine cores so far."""
        there = (seat.engine for seat in self.seats)
        return self.steps_gone + sum(each.steps for each in there if each is not None)

    def seat_of(self, engine: CellEngine) -> Seat | None:
        """Where it is; None: it is gone."""
        return self._seat_of.get(engine)

    def start(self, seat: Seat) -> None:
        """A new engine core takes the seat, with nothing in its cache."""
        if seat.engine is None and seat.cell is not None:
            seat.engine = self._make(seat.serial, seat.name)
            self._seat_of[seat.engine] = seat
            seat.cell.router.join(seat.engine)

    def stop(self, seat: Seat, now: float) -> list[Ask]:
        """Removes the seat's engine core. Returns its open requests, which have no engine core
        now."""
        engine, cell = seat.engine, seat.cell
        if engine is None or cell is None:
            return []
        cell.router.leave(engine)
        self.steps_gone += engine.steps
        seat.engine = None
        del self._seat_of[engine]
        left = engine.lose(now)
        cell.load -= len(left)
        return left

    def place(self, ask: Ask) -> Seat | None:
        """Returns the request's engine core; None: there is none."""
        request = ask.request
        named = request.session if not request.unnamed else ""
        belongs = f"session {request.tenant} {named}" if named else f"key {request.tenant}"
        cell = self.balancer.choose(belongs, self.cells)
        if cell is None or not cell.ready:
            return None
        engine, _ = cell.router.choose(placed_by(ask), cell.load)
        cell.load += 1
        return self._seat_of[engine]
