"""One engine core with a modelled worker and its drafts, and one front end, which is the router."""

from __future__ import annotations

import math
import random
from collections import deque

import msgspec

from penstock.errors import InvalidRequest
from penstock.model.kv_layout import ONE_GROUP, KVGroup
from penstock.protocol import PROTOCOL_VERSIONS
from penstock.protocol.common import TokenLogprobs
from penstock.protocol.from_frontend import Hello, Submit
from penstock.protocol.from_worker import AdapterReady, Ready, Result, SlotResult, WorkerHello
from penstock.protocol.to_frontend import Outputs, Rejected
from penstock.protocol.to_worker import FetchKV, LookUpKV, NewSequence, Plan, SaveKV, SlotWork
from penstock.protocol.worker_resources import LoadAdapter
from penstock_engine.core import EngineCore
from penstock_engine.facts import EngineFacts
from penstock_engine.sessions.effects import Effects
from penstock_engine.speculation.draft_policy import MAX_DRAFTS
from penstock_planning.simulate.adapters import AdapterLoads, SlotsWithAdapters
from penstock_planning.simulate.cost import StepCost
from penstock_planning.simulate.metrics import Metrics, Open
from penstock_planning.simulate.prompts import ANSWER
from penstock_planning.simulate.store import SimulatedStore


class SimulatedDrafts:
    """tokens: drafts that there are for every sequence at any time; 0: none.  acceptance: the
    chance of each to be right if those before it are, drawn from `seed`."""

    __slots__ = ("_acceptance", "_random", "tokens")

    def __init__(self, tokens: int = 0, acceptance: float = 0.0, seed: int = 0) -> None:
        if not 0 <= tokens <= MAX_DRAFTS:
            raise InvalidRequest(f"0 to {MAX_DRAFTS} tokens can be drafted, not {tokens}")
        if not 0.0 <= acceptance <= 1.0:
            raise InvalidRequest(f"acceptance must be in 0 to 1, not {acceptance:g}")
        self.tokens = tokens
        self._acceptance = acceptance
        self._random = random.Random(seed)

    def answer(self, work: SlotWork, token: int) -> SlotResult:
        """The result of work that samples: as if all that is sampled were the same token."""
        kept, draw, acceptance = 0, self._random.random, self._acceptance
        while kept < work.draft and draw() < acceptance:
            kept += 1
        return SlotResult(
            work.slot,
            token,
            more=[token] * kept,
            drafted=work.draft,
            proposed=self.tokens,
            guessed=None if work.draft else draw() < acceptance,
        )


class StepTally:
    """What a replica's steps were limited by. Seconds of steps: busy, of all; full, of those while
    requests waited for a slot; short, of those while they waited for blocks.  steps, tokens: of
    all of them."""

    __slots__ = ("busy", "full", "short", "steps", "tokens", "waiting")

    def __init__(self) -> None:
        self.busy = self.waiting = self.full = self.short = 0.0
        self.steps = self.tokens = 0

    def add(self, seconds: float, core: EngineCore, plan: Plan) -> None:
        """A step begins. The core has planned it, and what waits now found no place in it."""
        state = core.state.scheduling
        self.steps += 1
        self.tokens += sum(work.count for work in plan.work)
        self.busy += seconds
        if not state.queue:
            return
        self.waiting += seconds
        if len(state.running) >= state.max_num_seqs:
            self.full += seconds
        elif state.pool is not None and state.pool.num_free < state.pool.num_blocks / 20:
            self.short += seconds


FRONTEND = b"f" * 16


class SimulatedReplica:
    """Times are the simulation's, seconds.

    The routing policies see what they see of an engine core: endpoint, load, block_size.
    """

    __slots__ = (
        "_adapter_load",
        "_blocks",
        "_cost",
        "_drafts",
        "_host_blocks",
        "_kv_groups",
        "_metrics",
        "_result",
        "_seconds",
        "_seed",
        "_session",
        "ahead",
        "block_size",
        "busy_until",
        "core",
        "ended_ahead",
        "ended_sessions",
        "endpoint",
        "index",
        "life",
        "loads",
        "requests",
        "store",
        "tally",
        "wake_at",
        "worker",
    )

    def __init__(
        self,
        index: int,
        facts: EngineFacts,
        cost: StepCost,
        metrics: Metrics,
        kv_groups: tuple[KVGroup, ...] = ONE_GROUP,
        drafts: SimulatedDrafts | None = None,
        adapter_load: float = 0.0,
        host_blocks: int = 0,
        store: SimulatedStore | None = None,
        seed: int = 0,
    ) -> None:
        """adapter_load: seconds until a worker has loaded an adapter.  host_blocks: of the host
        tier, 0 for none.  store: what is kept on disk.  seed: of what steps' spread is drawn by."""
        blocks = facts.config.cache.num_kv_blocks
        if blocks is None:
            raise InvalidRequest("a simulation needs the number of KV blocks: --blocks")
        self.index = index
        self.core = EngineCore(facts)
        self.endpoint = f"replica-{index}"
        self.block_size = facts.block_size
        self.requests: dict[int, Open] = {}  # the open ones, by number
        # Whose prompts are computed here for others, by number; and those with which another goes
        # on, since somebody looked.
        self.ahead: dict[int, tuple[Submit, Open]] = {}
        self.ended_ahead: list[tuple[Submit, Open]] = []
        self.life = 0  # counts the worker's lives
        # When the step under way ends, and when `step` has to be called even if nothing happens.
        self.busy_until = self.wake_at = math.inf
        self.ended_sessions: list[str] = []  # whose turn is over, since somebody looked
        self.store = store or SimulatedStore(0, 0.0)
        self.tally = StepTally()
        self._adapter_load = adapter_load
        self._host_blocks = host_blocks
        self._blocks = blocks
        self._kv_groups = kv_groups
        self._cost = cost
        self._drafts = drafts or SimulatedDrafts()
        self._metrics = metrics
        self._seed = seed
        self._result: Result | None = None
        self.core.frontend_opened(FRONTEND, Hello(list(PROTOCOL_VERSIONS), "router", 0), 0.0)
        self.start_worker(0.0)
        self.step(0.0)

    @property
    def load(self) -> int:
        """Requests that are open here."""
        return len(self.requests) + len(self.ahead)

    def start_worker(self, now: float) -> None:
        """A worker with an empty pool; the steps of the one before are forgotten."""
        settings = self.core.state.facts.config.scheduler
        self.life += 1
        self.busy_until = math.inf
        self.worker = SimulatedWorker(
            self._cost,
            settings.max_num_seqs,
            self._drafts,
            seed=f"{self._seed}/{self.index}/{self.life}",
        )
        self.loads = AdapterLoads(self._adapter_load)
        self.store.forget_asked()
        self._session = self.life.to_bytes(16, "big")
        ready = Ready(
            num_kv_blocks=self._blocks,
            device="simulated",
            fingerprint="",
            load_seconds=0.0,
            kv_groups=self._kv_groups,
            num_host_blocks=self._host_blocks,
            disk_kv=bool(self.store),
            copy_seconds=2 * self._cost.copying(1) if self._host_blocks else 0.0,
        )
        self.core.worker_opened(self._session, WorkerHello(list(PROTOCOL_VERSIONS), 0, 0), now)
        self.core.worker_received(self._session, ready, now)

    def lose_worker(self, now: float) -> None:
        """Simulates the death of the worker; another one is there at once."""
        self.core.worker_ended(self._session, "it died", now)
        self.start_worker(now)
        self.step(now)

    def submit(self, submit: Submit, request: Open, now: float) -> None:
        self.requests[submit.request] = request
        self.core.frontend_received(FRONTEND, submit, now)
        self.step(now)

    def compute_ahead(self, part: Submit, whole: tuple[Submit, Open], now: float) -> None:
        """Computes the prompt of a request with which another one goes on."""
        self.ahead[part.request] = whole
        self.core.frontend_received(FRONTEND, part, now)
        self.step(now)

    def finish_step(self, now: float) -> None:
        """The step under way is done: its result reaches the core, the next one begins."""
        result, worker = self._result, self.worker
        if result is None:
            raise RuntimeError(f"replica {self.index} has no step under way")
        worker.plans.popleft()
        self._begin(now)
        self.core.worker_received(self._session, result, now)
        self.step(now)

    def finish_load(self, now: float) -> None:
        """The worker has loaded the first of the adapters that it was asked for."""
        ready = AdapterReady(self.loads.due.popleft())
        self.core.worker_received(self._session, ready, now)
        self.step(now)

    def finish_read(self, now: float) -> None:
        """The store answers the first question that is open."""
        self.core.worker_received(self._session, self.store.due.popleft(), now)
        self.step(now)

    def step(self, now: float) -> None:
        """Lets the core decide, and hands out what it wants sent."""
        effects = self.core.step(now)
        if effects.to_workers:
            plans = self.worker.plans
            for session, to_worker, _ in effects.to_workers:
                if session != self._session:
                    continue
                if type(to_worker) is Plan:
                    plans.append(to_worker)
                    self.store.save(to_worker.saves)
                elif type(to_worker) is LoadAdapter:
                    self.loads.add(to_worker.adapter, now)
                elif type(to_worker) is SaveKV:
                    self.store.save(to_worker.saves)
                elif isinstance(to_worker, LookUpKV | FetchKV):
                    self.store.ask(to_worker, now)
            if self.busy_until == math.inf:
                self._begin(now)
        if effects.to_frontends:
            self._tell(effects, now)

    def _begin(self, now: float) -> None:
        """Starts on the first of the plans that wait, if there is one."""
        plans = self.worker.plans
        if not plans:
            self._result, self.busy_until = None, math.inf
            return
        self._result, seconds = self.worker.execute(plans[0])
        self.tally.add(seconds, self.core, plans[0])
        self.busy_until = now + seconds

    def _tell(self, effects: Effects, now: float) -> None:
        requests = self.requests
        for _, message, _ in effects.to_frontends:
            if type(message) is Outputs:
                if self.ahead:
                    message = self._without_ahead(message)
                ended = self._metrics.outputs(message, requests, now)
                for number in ended:
                    self._forget(number)
            elif type(message) is Rejected and message.request in self.ahead:
                self.ended_ahead.append(self.ahead.pop(message.request))
            elif type(message) is Rejected:
                self._metrics.refuse(message.request, now)
                self._forget(message.request)

    def _without_ahead(self, message: Outputs) -> Outputs:
        """Returns the outputs of requests that are answered by this replica."""
        mine = []
        for output in message.outputs:
            if output.request not in self.ahead:
                mine.append(output)
            elif output.finish is not None:
                self.ended_ahead.append(self.ahead.pop(output.request))
        return Outputs(mine)

    def _forget(self, number: int) -> None:
        session = self.requests.pop(number).session
        if session:
            self.ended_sessions.append(session)


class SimulatedWorker:
    """Knows how many tokens each slot has, and how many blocks are copied; whatever else a plan may
    bring changes nothing.

    plans: sent and not finished, the first of them being computed.
    """

    __slots__ = (
        "_adapters",
        "_cost",
        "_drafts",
        "_held",
        "_partial",
        "_prompts",
        "_random",
        "_sampled",
        "_telling",
        "plans",
    )

    def __init__(
        self,
        cost: StepCost,
        max_num_seqs: int,
        drafts: SimulatedDrafts | None = None,
        seed: str = "",
    ) -> None:
        """seed: of what the cost's spread is drawn by."""
        self._random = random.Random(seed)
        self.plans: deque[Plan] = deque()
        self._cost = cost
        self._drafts = drafts or SimulatedDrafts()
        self._adapters = SlotsWithAdapters()
        self._held: dict[int, int] = {}
        self._prompts: dict[int, int] = {}
        self._telling: set[int] = set()  # slots that report log-probabilities
        # Answers are values, and there are few different ones.
        self._sampled = [SlotResult(slot, ANSWER) for slot in range(max_num_seqs)]
        self._partial = [SlotResult(slot) for slot in range(max_num_seqs)]

    def execute(self, plan: Plan) -> tuple[Result, float]:
        """The answer, and the seconds after which it comes."""
        held = self._held
        for slot in plan.released:
            held.pop(slot, None)
            self._prompts.pop(slot, None)
            self._telling.discard(slot)
        for new in plan.admitted:
            self._admit(new)
        self._adapters.take(plan)
        answers: list[SlotResult] = []
        sampled, partial, drafts = self._sampled, self._partial, self._drafts
        tokens = pairs = reads = 0
        for work in plan.work:
            slot, count = work.slot, work.count
            start = held[slot] - count if work.after_drafts else work.start
            end = start + count
            tokens += count
            pairs += count * (start + end + 1)
            reads += end
            if end == held[slot]:
                answer = sampled[slot] if not drafts.tokens else drafts.answer(work, ANSWER)
                held[slot] = end + 1 + len(answer.more)
                tokens += answer.drafted
                pairs += answer.drafted * (2 * end + answer.drafted + 1)
                answers.append(_telling(answer) if slot in self._telling else answer)
            else:
                answers.append(partial[slot])
        cost = self._cost
        adapters, adapted = self._adapters.extent(plan)
        seconds = cost.seconds(tokens, len(answers), pairs // 2, adapters, adapted, reads)
        seconds += cost.copying(len(plan.copies))
        if spread := cost.spread_of(seconds):
            seconds *= self._random.choice(spread)
        return Result(plan.step, answers, seconds), seconds

    def _admit(self, new: NewSequence) -> None:
        if new.like is None:
            self._prompts[new.slot], shared = new.num_prompt, 0
        else:
            shared = self._prompts[new.slot] = self._prompts[new.like]
        if new.sampling.logprobs is not None or new.like in self._telling:
            self._telling.add(new.slot)
        self._held[new.slot] = shared + len(new.tokens)


def _telling(answer: SlotResult) -> SlotResult:
    """The answer, with the log-probabilities of what is certain."""
    certain = TokenLogprobs(0.0, (), ())
    more = [certain] * len(answer.more)
    return msgspec.structs.replace(answer, logprobs=certain, more_logprobs=more)
