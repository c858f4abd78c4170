"""The events of all replicas in the order of their times; of equal times, in a fixed order."""

from __future__ import annotations

import gc
import heapq
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec

from penstock.config.settings import EngineConfig
from penstock.errors import InvalidRequest
from penstock.model.kv_layout import ONE_GROUP, KVGroup
from penstock.protocol.from_frontend import Submit
from penstock_planning.simulate.adapters import check_load
from penstock_planning.simulate.apart import PromptsApart, check_apart
from penstock_planning.simulate.cost import StepCost
from penstock_planning.simulate.facts import engine_facts
from penstock_planning.simulate.groups import check_groups
from penstock_planning.simulate.metrics import Metrics, Open, Slo
from penstock_planning.simulate.prompts import Told, submit_of
from penstock_planning.simulate.replica import SimulatedDrafts, SimulatedReplica
from penstock_planning.simulate.routing import make_router, routing_request
from penstock_planning.simulate.store import Kept, SimulatedStore, check_store
from penstock_planning.simulate.trace import TraceRequest

MAX_REPLICAS = 100_000

_RESULT, _WAKE, _DEATH, _LOADED, _TURN, _READ = 0, 1, 2, 3, 4, 5

Progress = Callable[[float, Metrics], None]

LOOK = 64
"""Events between two calls of `watch`."""


class Stuck(Exception):
    """Requests are open, and neither the core nor a worker has anything to do: a lost request."""


class SimulationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """cost: of a step.  check_every: events between two proofs of a replica's books (0: none).
    deaths_per_hour: workers that die, of each replica, at times drawn from `seed`, as steps' spread
    is.
    kv_groups: of the model.  draft_tokens, acceptance: see SimulatedDrafts.  adapter_load: seconds
    until a worker has loaded an adapter.  host_blocks: of the host tier.  told: see Told.
    disk_blocks: kept on disk, of each replica.  disk_block: seconds until one is read.
    prefill_replicas: that compute prompts of at least prefill_tokens for the others.
    transfer_blocks: that each replica keeps for others then.  transfer_block: seconds until one is
    fetched."""

    cost: StepCost = StepCost()
    replicas: int = 1
    routing: str = "round-robin"
    slo_ttft: float = 1.0
    slo_itl: float = 0.1
    check_every: int = 0
    deaths_per_hour: float = 0.0
    seed: int = 0
    kv_groups: tuple[KVGroup, ...] = ONE_GROUP
    draft_tokens: int = 0
    acceptance: float = 0.7
    adapter_load: float = 0.5
    host_blocks: int = 0
    told: Told = "sessions"
    disk_blocks: int = 0
    disk_block: float = 0.0005
    prefill_replicas: int = 0
    prefill_tokens: int = 512
    transfer_blocks: int = 8192
    transfer_block: float = 0.0002


class Simulation:
    """`run` is its whole life.

    events: handled so far.  checks: proofs of books, of which none has failed.
    wall_seconds, cpu_seconds: that `run` took.  watch: is called while it runs, and may raise.
    """

    def __init__(self, config: EngineConfig, options: SimulationOptions) -> None:
        if not 1 <= options.replicas <= MAX_REPLICAS:
            raise InvalidRequest(f"1 to {MAX_REPLICAS} replicas, not {options.replicas}")
        if config.parallel.pipeline_parallel_size > 1:
            raise InvalidRequest("a simulated worker has one stage; pipeline_parallel_size is 1")
        check_groups(options.kv_groups, config.cache.kv_block_size)
        check_load(options.adapter_load)
        check_store(options.disk_blocks, options.disk_block)
        check_apart(
            options.prefill_replicas,
            options.replicas,
            options.prefill_tokens,
            has_disk=options.disk_blocks > 0,
        )
        stores = _stores(options)
        self.options = options
        self.metrics = Metrics(Slo(options.slo_ttft, options.slo_itl))
        self.router = make_router(options.routing)
        about = engine_facts(config)
        self.replicas = [
            SimulatedReplica(
                index,
                about,
                options.cost,
                self.metrics,
                options.kv_groups,
                SimulatedDrafts(options.draft_tokens, options.acceptance, options.seed + index),
                options.adapter_load,
                options.host_blocks,
                stores[index],
                options.seed,
            )
            for index in range(options.replicas)
        ]
        self.apart = PromptsApart(
            self.replicas,
            options.prefill_replicas,
            options.prefill_tokens,
            make_router(options.routing),
        )
        self.now = 0.0
        self.events = 0
        self.checks = 0
        self.deaths = 0
        self.wall_seconds = self.cpu_seconds = 0.0
        self.watch: Callable[[], None] | None = None
        self._heap: list[tuple[float, int, int, int]] = []
        """(time, kind, replica, life of its worker); of a turn: its number in place of these"""
        self._turns = SessionTurns()
        self._next_turns: dict[int, TraceRequest] = {}
        """Turns whose pause has begun, by number."""
        self._number = self._last_turn = 0
        self._rng = random.Random(options.seed)
        if options.deaths_per_hour > 0:
            for replica in self.replicas:
                self._plan_death(replica)

    def run(self, trace: Iterable[TraceRequest], progress: Progress | None = None) -> None:
        """Runs until every request of the trace has ended. Raises BrokenState if a check fails,
        Stuck if a request never ends."""
        begun, cpu = time.perf_counter(), time.process_time()
        with _patient_collector(self.options.replicas):
            self._run(iter(trace), progress)
        self.wall_seconds = time.perf_counter() - begun
        self.cpu_seconds = time.process_time() - cpu

    def _run(self, trace: Iterator[TraceRequest], progress: Progress | None) -> None:
        heap, check_every = self._heap, self.options.check_every
        arrival = next(trace, None)
        while True:
            if arrival is not None and (not heap or arrival.at <= heap[0][0]):
                self.now = max(self.now, arrival.at)
                comes, arrival = arrival, next(trace, None)
                if self._turns.waits(comes):
                    continue
                replica = self._arrive(comes, progress)
            elif heap and (arrival is not None or self.num_open or self._next_turns):
                at, kind, index, life = heapq.heappop(heap)
                self.now = at
                if kind == _TURN:
                    replica = self._arrive(self._next_turns.pop(index), progress)
                else:
                    replica = self.replicas[index]
                    self._happen(replica, kind, life)
            else:
                break
            self.events += 1
            if self.watch is not None and self.events % LOOK == 0:
                self.watch()
            if check_every and self.events % check_every == 0:
                replica.core.check()
                self.checks += 1
        if self.num_open or self._turns.num_waiting:
            raise Stuck(f"at {self.now:g} s there are open requests but no further events")
        self._check_all()

    @property
    def num_open(self) -> int:
        """Requests that have come and were not answered."""
        metrics = self.metrics
        return metrics.submitted - metrics.rejected - metrics.finishes.total()

    def _arrive(self, arrival: TraceRequest, progress: Progress | None) -> SimulatedReplica:
        self._number += 1
        if progress is not None and self._number % 1_000 == 0:
            progress(self.now, self.metrics)
        submit = submit_of(arrival, self._number, self.options.told)
        self.metrics.submitted += 1
        request = Open(self.now, arrival.num_prompt, arrival.tenant, session=arrival.session)
        ahead = self.apart.first_part(submit)
        if ahead is None:
            return self._submit(submit, request)
        replica, part = ahead
        busy_until = replica.busy_until
        replica.compute_ahead(part, (submit, request), self.now)
        self._after(replica, busy_until)
        return replica

    def _submit(self, submit: Submit, request: Open) -> SimulatedReplica:
        """Submits a request to the replica that is to answer it, and returns that."""
        replica, _ = self.router.choose(routing_request(submit), self.apart.answering)
        busy_until = replica.busy_until
        replica.submit(submit, request, self.now)
        self._after(replica, busy_until)
        return replica

    def _happen(self, replica: SimulatedReplica, kind: int, life: int) -> None:
        now, busy_until = self.now, replica.busy_until
        if kind == _LOADED:
            if life != replica.life:
                return
            replica.finish_load(now)
        elif kind == _READ:
            if life != replica.life:
                return
            replica.finish_read(now)
        elif kind == _RESULT:
            if life != replica.life:
                return
            busy_until = math.inf
            replica.finish_step(now)
        elif kind == _WAKE:
            if now < replica.wake_at:
                return
            replica.wake_at = math.inf
            replica.step(now)
        else:
            self.deaths += 1
            busy_until = math.inf
            replica.lose_worker(now)
            self._plan_death(replica)
        self._after(replica, busy_until)

    def _after(self, replica: SimulatedReplica, busy_until: float) -> None:
        """Notes what the replica will do next, and which requests come when some have their
        answers. busy_until: as it was before."""
        if replica.ended_ahead:
            ended, replica.ended_ahead = replica.ended_ahead, []
            for submit, request in ended:
                self._submit(submit, request)
        if replica.ended_sessions:
            self._let_pause(replica)
        for at in replica.loads.begun():
            heapq.heappush(self._heap, (at, _LOADED, replica.index, replica.life))
        for at in replica.store.begun():
            heapq.heappush(self._heap, (at, _READ, replica.index, replica.life))
        if replica.busy_until != busy_until and replica.busy_until != math.inf:
            heapq.heappush(self._heap, (replica.busy_until, _RESULT, replica.index, replica.life))
        if replica.load:
            due = replica.core.next_deadline()
            if due < replica.wake_at:
                # A deadline that has passed already is met by the next moment's step.
                replica.wake_at = max(due, self.now + 0.001)
                heapq.heappush(self._heap, (replica.wake_at, _WAKE, replica.index, 0))

    def _let_pause(self, replica: SimulatedReplica) -> None:
        ended, replica.ended_sessions = replica.ended_sessions, []
        for session in ended:
            turn = self._turns.ended(session)
            if turn is not None:
                self._last_turn += 1
                self._next_turns[self._last_turn] = turn
                heapq.heappush(self._heap, (self.now + turn.pause, _TURN, self._last_turn, 0))

    def _plan_death(self, replica: SimulatedReplica) -> None:
        after = self._rng.expovariate(self.options.deaths_per_hour / 3600)
        heapq.heappush(self._heap, (self.now + after, _DEATH, replica.index, 0))

    def _check_all(self) -> None:
        for replica in self.replicas:
            replica.core.check()
            self.checks += 1


def _stores(options: SimulationOptions) -> list[SimulatedStore]:
    """The store of each replica: its disk, or what all of them keep for one another."""
    count = options.replicas
    if not options.prefill_replicas:
        return [SimulatedStore(options.disk_blocks, options.disk_block) for _ in range(count)]
    check_store(options.transfer_blocks, options.transfer_block)
    together, kept = count * options.transfer_blocks, Kept()
    return [SimulatedStore(together, options.transfer_block, kept) for _ in range(count)]


class _Uncollected:
    """Engine cores that were simulated since the collector last looked at everything. Looking takes
    longer than a short simulation, in a process that holds much."""

    cores = 0
    most = 64


@contextmanager
def _patient_collector(cores: int) -> Iterator[None]:
    """The garbage collector looks at what is young, and seldom: a core's state is old."""
    thresholds = gc.get_threshold()
    if _Uncollected.cores + cores > _Uncollected.most:
        gc.collect()
        _Uncollected.cores = 0
    _Uncollected.cores += cores
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


class SessionTurns:
    """Turns of sessions that wait for the turn before them. A session is known while one of its
    turns is open or to come."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[str, deque[TraceRequest]] = {}

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def waits(self, request: TraceRequest) -> bool:
        """Takes a request of the trace. Whether it waits for its turn; else it comes at once."""
        if not request.session:
            return False
        line = self._waiting.get(request.session)
        if line is None:
            self._waiting[request.session] = deque()
            return False
        line.append(request)
        return True

    def ended(self, session: str) -> TraceRequest | None:
        """A turn is over: the next one, which comes after its pause; None: there is none."""
        line = self._waiting[session]
        if line:
            return line.popleft()
        del self._waiting[session]
        return None
