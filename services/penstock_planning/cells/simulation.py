"""Cells under a virtual clock: requests come, engine cores compute, and things happen to them."""

from __future__ import annotations

import hashlib
import heapq
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from penstock.config.settings import EngineConfig
from penstock.errors import InvalidRequest
from penstock_engine.facts import EngineFacts
from penstock_planning.cells.asks import Ask
from penstock_planning.cells.balancers import make_balancer
from penstock_planning.cells.figures import FigureWindow
from penstock_planning.cells.fleet import CellEngine, Seat, SimulatedCells
from penstock_planning.cells.happenings import Happening
from penstock_planning.cells.modelled import ModelledEngine
from penstock_planning.cells.prefixes import HeldPrefixes
from penstock_planning.cells.production import ProductionEngine
from penstock_planning.cells.stretch import StretchPace
from penstock_planning.simulate.cost import StepCost
from penstock_planning.simulate.facts import engine_facts
from penstock_planning.simulate.simulation import SessionTurns, Stuck
from penstock_planning.simulate.trace import TraceRequest

MAX_CELLS = 1024
MAX_ENGINES = 16_384
RETRY = 1.0
"""Seconds until a request that found no engine core is retried."""

_ENDED = struct.Struct("<qddqq")


class CellsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """cells: how many.  replicas: engine cores of each.  across: how a cell is chosen, a name of
    BALANCERS.  steps_at_once: whether engine cores are modelled, with many steps in one event; else
    they are the production ones.  happens: what happens to them.  windows: (name, begin): seconds
    from which figures are counted on their own.  every: seconds of further windows, one after the
    other; 0: none."""

    cost: StepCost = StepCost()
    cells: int = 4
    replicas: int = 4
    across: str = "hashed"
    steps_at_once: bool = True
    happens: tuple[Happening, ...] = ()
    windows: tuple[tuple[str, float], ...] = (("all", 0.0),)
    every: float = 0.0


class CellsSimulation:
    """`run` is its whole life.

    ended: requests.  lost: those that had to go on elsewhere, each time.  events: handled.
    windows, series: figures, see `windows` and `every` of the options.
    """

    def __init__(self, config: EngineConfig, options: CellsOptions) -> None:
        if not 1 <= options.cells <= MAX_CELLS or options.replicas < 1:
            raise InvalidRequest(f"1 to {MAX_CELLS} cells with an engine core each, at least")
        if options.cells * options.replicas > MAX_ENGINES:
            raise InvalidRequest(
                f"{options.cells} × {options.replicas} engine cores; at most {MAX_ENGINES:,}"
            )
        self.options = options
        make = _modelled(config, options) if options.steps_at_once else _real(config, options)
        balancer = make_balancer(options.across)
        self.fleet = SimulatedCells(options.cells, options.replicas, balancer, make)
        begins = [begin for _, begin in options.windows]
        if not begins or begins[0] or begins != sorted(begins):
            raise InvalidRequest("windows must begin one after the other, the first one at 0")
        ends = [*begins[1:], float("inf")]
        self.windows = [
            FigureWindow(name, begin, end)
            for (name, begin), end in zip(options.windows, ends, strict=True)
        ]
        self.series: list[FigureWindow] = []
        self.now = self.cpu_seconds = 0.0
        self.submitted = self.ended = self.lost = self.events = 0
        self._heap: list[tuple[float, int, CellEngine | Callable[[float], None]]] = []
        self._serial = 0
        self._turns = SessionTurns()
        self._coming = 0  # turns whose pause has begun
        self._digest = hashlib.blake2b(digest_size=16)
        for seat in self.fleet.seats:
            self.fleet.start(seat)
        for happening in options.happens:
            happening.begin(self)

    @property
    def num_open(self) -> int:
        """Requests that have come and were not answered."""
        return self.submitted - self.ended

    def digest(self) -> str:
        """Returns a digest of every request's end: equal for equal runs."""
        return self._digest.hexdigest()

    def run(self, trace: Iterable[TraceRequest]) -> None:
        """Runs until every request has ended. Raises Stuck if one never does."""
        begun = time.process_time()
        self._run(iter(trace))
        self.cpu_seconds = time.process_time() - begun
        if self.num_open or self._turns.num_waiting:
            raise Stuck(f"at {self.now:g} s there are open requests but no further events")

    def later(self, at: float, act: Callable[[float], None]) -> None:
        """Calls `act` with the time when it has come, unless all requests have ended before."""
        self._push(at, act)

    def start(self, seat: Seat) -> None:
        """An engine core takes the seat."""
        self.fleet.start(seat)

    def stop(self, seat: Seat, now: float, after: float) -> None:
        """The seat's engine core is gone; its requests go on elsewhere `after` seconds later."""
        for ask in self.fleet.stop(seat, now):
            self.lost += 1
            ask.moves += 1
            if not ask.left:
                # Its last token came in the step that was the last.
                self._over(ask)
            else:
                self._place_later(now + after, ask)

    def _run(self, trace: Iterator[TraceRequest]) -> None:
        heap = self._heap
        arrival = next(trace, None)
        while True:
            if arrival is not None and (not heap or arrival.at <= heap[0][0]):
                self.now = max(self.now, arrival.at)
                comes, arrival = arrival, next(trace, None)
                if not self._turns.waits(comes):
                    self._arrive(comes)
            elif heap and (arrival is not None or self.num_open or self._coming):
                at, _, what = heapq.heappop(heap)
                if callable(what):
                    self.now = at
                    what(at)
                elif what.due == at:
                    self.now = at
                    self._advance(what)
            else:
                return
            self.events += 1

    def _advance(self, engine: CellEngine) -> None:
        seat = self.fleet.seat_of(engine)
        if seat is None:
            return
        ended = engine.advance(self.now)
        if engine.due != float("inf"):
            self._push(engine.due, engine)
        for ask in ended:
            if seat.cell is not None:
                seat.cell.load -= 1
            self._over(ask)

    def _over(self, ask: Ask) -> None:
        self.ended += 1
        for window in self._windows(ask.arrival):
            window.add(ask)
        self._digest.update(_ENDED.pack(ask.number, ask.first, ask.last, ask.left, ask.moves))
        if ask.request.session:
            turn = self._turns.ended(ask.request.session)
            if turn is not None:
                self._coming += 1
                self._push(self.now + turn.pause, self._turn(turn))

    def _turn(self, request: TraceRequest) -> Callable[[float], None]:
        def come(_: float) -> None:
            self._coming -= 1
            self._arrive(request)

        return come

    def _arrive(self, request: TraceRequest) -> None:
        self.submitted += 1
        self._place(Ask(request, self.submitted, self.now))

    def _place(self, ask: Ask) -> None:
        seat = self.fleet.place(ask)
        if seat is None or seat.engine is None:
            self._place_later(self.now + RETRY, ask)
            return
        if not ask.moves:
            for window in self._windows(ask.arrival):
                window.came(seat.group)
        engine, due = seat.engine, seat.engine.due
        engine.submit(ask, self.now)
        if engine.due != due:
            self._push(engine.due, engine)

    def _place_later(self, at: float, ask: Ask) -> None:
        self._push(at, lambda _: self._place(ask))

    def _windows(self, at: float) -> list[FigureWindow]:
        found = [next(each for each in reversed(self.windows) if at >= each.begin)]
        every, series = self.options.every, self.series
        if every:
            while len(series) <= at / every:
                begin = len(series) * every
                series.append(FigureWindow("", begin, begin + every))
            found.append(series[int(at / every)])
        return found

    def _push(self, at: float, what: CellEngine | Callable[[float], None]) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (at, self._serial, what))


def _modelled(config: EngineConfig, options: CellsOptions) -> Callable[[int, str], CellEngine]:
    if options.cost.spread or options.cost.by_size:
        options = msgspec.structs.replace(
            options, cost=msgspec.structs.replace(options.cost, spread=(), by_size=())
        )
    terms, facts = config.scheduler, engine_facts(config)
    blocks = facts.config.cache.num_kv_blocks
    if blocks is None:
        raise InvalidRequest("a simulation needs the number of KV blocks: --blocks")
    pace = StretchPace(
        options.cost,
        terms.max_num_batched_tokens,
        terms.max_step_slowdown,
        0.001 * terms.short_step_ms,
    )

    def make(_: int, name: str) -> CellEngine:
        return ModelledEngine(
            name,
            pace,
            HeldPrefixes(blocks, facts.block_size),
            terms.policy,
            terms.max_num_seqs,
            terms.max_steps_in_flight,
        )

    return make


def _real(config: EngineConfig, options: CellsOptions) -> Callable[[int, str], CellEngine]:
    facts: EngineFacts = engine_facts(config)
    return lambda index, name: ProductionEngine(name, index, facts, options.cost)


def windows_of(text: str) -> Sequence[tuple[str, float]]:
    """`calm:60,loss:300`. Raises InvalidRequest."""
    found = []
    for part in text.split(","):
        name, _, begin = part.partition(":")
        try:
            found.append((name, float(begin or 0)))
        except ValueError:
            raise InvalidRequest(f"window {part!r} is not NAME:SECONDS, as in calm:60") from None
    return found
