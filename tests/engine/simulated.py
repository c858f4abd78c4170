"""EngineCore under a virtual clock: a worker whose steps take a time that their tokens set.

The worker's books are its own, so that what tenants got is counted independently of the policy.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.protocol.common import Stopping, TokenSampling
from penstock.protocol.from_frontend import Hello, OpenSequence, Submit
from penstock.protocol.from_worker import Ready, Result, SlotResult, WorkerHello
from penstock.protocol.to_frontend import Accepted, Outputs, Rejected
from penstock.protocol.to_worker import Plan
from penstock_engine.core import EngineCore
from tests.engine.small_facts import facts

FRONT, WORKER = b"front", b"worker"


@dataclass
class Asked:
    """One request and what became of it. Times in seconds of the virtual clock.

    again: what whoever asked will ask for next; the simulation only keeps it.
    """

    tenant: str
    at: float
    prompt: int
    again: Any = None
    first_token: float | None = None
    ended: float | None = None
    finish: str | None = None
    rejected: Rejected | None = None
    tokens: int = 0
    latest: float | None = None
    longest_gap: float = 0.0
    """Between two of its tokens."""

    @property
    def wait(self) -> float:
        assert self.first_token is not None
        return self.first_token - self.at


@dataclass
class Given:
    """What a tenant was given. block_steps: KV blocks held, summed over steps."""

    prompt: int = 0
    generated: int = 0
    block_steps: int = 0


@dataclass
class _Slot:
    tenant: str
    tokens: int
    computed: int
    blocks: int


@dataclass
class Simulation:
    """fixed, each: seconds of a step, and of each of its tokens."""

    fixed: float = 0.005
    each: float = 0.0001
    num_blocks: int = 4000
    settings: dict[str, Any] = field(default_factory=dict)
    on_end: Callable[[Asked], None] | None = None

    def __post_init__(self) -> None:
        options = {"max_model_len": 4096, "block_size": 16, "max_steps_in_flight": 2}
        self.core = EngineCore(facts(**{**options, "prefix_caching": False, **self.settings}))
        self.now = 0.0
        self.requests: dict[int, Asked] = {}
        self.given: dict[str, Given] = {}
        self._numbers = itertools.count(1)
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._plans: deque[Plan] = deque()
        self._slots: dict[int, _Slot] = {}
        self._busy = False
        self.longest_step = 0.0
        self.core.frontend_opened(FRONT, Hello([2], "simulated", 1), 0.0)
        self.core.worker_opened(WORKER, WorkerHello([2], 0, 2), 0.0)
        self._settle()
        ready = Ready(num_kv_blocks=self.num_blocks, device="", fingerprint="", load_seconds=0.0)
        self.core.worker_received(WORKER, ready, 0.0)
        self._settle()

    @property
    def bound(self) -> float:
        """The bound of a step's time, seconds."""
        return (
            self.fixed + self.each * self.core.state.facts.config.scheduler.max_num_batched_tokens
        )

    def ask(
        self, at: float, tenant: str, prompt: int, output: int, again: Any = None, **terms: Any
    ) -> None:
        """A request that comes at `at`, of so many prompt tokens and tokens to generate."""
        asked = Asked(tenant, at, prompt, again)
        self._at(at, lambda: self._submit(asked, output, terms))

    def run(self, until: float) -> None:
        """Up to that time; what is open then stays so."""
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
            self._settle()

    def _at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), event))

    def _submit(self, asked: Asked, output: int, terms: dict[str, Any]) -> None:
        number = next(self._numbers)
        self.requests[number] = asked
        submit = Submit(
            number,
            str(number),
            [5] * asked.prompt,
            [OpenSequence(0)],
            TokenSampling(seed=0),
            Stopping(max_tokens=output, ignore_eos=True),
            tenant=asked.tenant,
            **terms,
        )
        self.core.frontend_received(FRONT, submit, self.now)

    def _settle(self) -> None:
        effects = self.core.step(self.now)
        assert not effects.end_workers
        for _, message, _ in effects.to_workers:
            if isinstance(message, Plan):
                self._plans.append(message)
        for _, told, _ in effects.to_frontends:
            if isinstance(told, Outputs):
                for output in told.outputs:
                    self._take(self.requests[output.request], len(output.tokens), output.finish)
            elif isinstance(told, Rejected):
                self.requests[told.request].rejected = told
            else:
                assert not isinstance(told, Accepted) or told.request in self.requests
        self._compute()

    def _take(self, asked: Asked, tokens: int, finish: str | None) -> None:
        asked.tokens += tokens
        if asked.first_token is None and tokens:
            asked.first_token = self.now
        if tokens:
            if asked.latest is not None:
                asked.longest_gap = max(asked.longest_gap, self.now - asked.latest)
            asked.latest = self.now
        if finish is not None:
            asked.ended, asked.finish = self.now, finish
            if self.on_end is not None:
                self.on_end(asked)

    def _compute(self) -> None:
        if self._busy or not self._plans:
            return
        self._busy = True
        plan = self._plans.popleft()
        tenants = {
            slot: sequence.request.tenant
            for slot, sequence in [
                *self.core.state.scheduling.running.items(),
                *self.core.state.scheduling.marked.items(),
            ]
        }
        for slot in plan.released:
            del self._slots[slot]
        # What is in the cache already needn't be computed.
        starts = {work.slot: work.start for work in plan.work}
        for new in plan.admitted:
            tokens = len(new.tokens) + (new.num_prompt if new.like is not None else 0)
            self._slots[new.slot] = _Slot(
                tenants[new.slot], tokens, starts[new.slot], len(new.blocks)
            )
        results = [self._work(w.slot, w.start, w.count, len(w.new_blocks)) for w in plan.work]
        for held in self._slots.values():
            self.given.setdefault(held.tenant, Given()).block_steps += held.blocks
        seconds = self.fixed + self.each * sum(work.count for work in plan.work)
        self.longest_step = max(self.longest_step, seconds)
        self._at(self.now + seconds, lambda: self._done(Result(plan.step, results, seconds)))

    def _work(self, number: int, start: int, count: int, new_blocks: int) -> SlotResult:
        slot = self._slots[number]
        assert start == slot.computed
        slot.blocks += new_blocks
        slot.computed += count
        given = self.given.setdefault(slot.tenant, Given())
        ends = slot.computed == slot.tokens
        given.prompt += 0 if ends and count == 1 else count
        if not ends:
            return SlotResult(number)
        given.generated += 1
        slot.tokens += 1
        return SlotResult(number, 3)

    def _done(self, result: Result) -> None:
        self._busy = False
        self.core.worker_received(WORKER, result, self.now)


def percentile(values: list[float], share: float) -> float:
    """The value that `share` of them don't exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
