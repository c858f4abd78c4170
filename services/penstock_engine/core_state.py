"""The state of an engine core, which its handlers share: one object with a name for each part."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from penstock_engine.facts import EngineFacts
from penstock_engine.media.manager import MediaManager
from penstock_engine.metrics.counts import EngineCounts
from penstock_engine.parts import (
    HasDeadline,
    HoldsSequences,
    ReportsStatus,
    Restless,
    ServesFrontends,
)
from penstock_engine.policies.registry import make_policy
from penstock_engine.request.request import Sequence
from penstock_engine.request.timeline import Clock
from penstock_engine.scheduler.features import SchedulerFeature, SchedulerFeatures
from penstock_engine.scheduler.kv_sessions import KVSessions
from penstock_engine.scheduler.settled_steps import StepClock
from penstock_engine.scheduler.state import SchedulerState
from penstock_engine.sessions.drain import Drain
from penstock_engine.sessions.effects import Effects
from penstock_engine.sessions.frontends import Frontends
from penstock_engine.sessions.kept_answers import KeptAnswers
from penstock_engine.sessions.shared_answers import SharedAnswers
from penstock_engine.sessions.sleep import SleepState
from penstock_engine.sessions.weights import WeightsChange
from penstock_engine.sessions.workers import Workers
from penstock_engine.waiting.adapter_entry import AdapterNames
from penstock_engine.waiting.adapters import AdapterManager
from penstock_engine.waiting.disk_kv import DiskKV, RemoteKV
from penstock_engine.waiting.expected_prompts import ExpectedPrompts
from penstock_engine.waiting.grammars import GrammarManager
from penstock_engine.waiting.queue_bounds import ServiceRate
from penstock_engine.waiting.worker_calls import WorkerCalls

if TYPE_CHECKING:
    from penstock_engine.waiting.live_audit import LiveAudit


class ContextLimit:
    """The model's context, or what the whole pool of the present worker holds, if that is less."""

    def __init__(self, longest_sequence: int, scheduling: SchedulerState) -> None:
        self._longest = longest_sequence
        self._scheduling = scheduling

    @property
    def tokens(self) -> int:
        """Prompt and output. Without a worker the pool is unknown, and the model's limit stands."""
        capacity = self._scheduling.capacity
        return self._longest if capacity is None else min(self._longest, capacity)

    @property
    def words(self) -> str:
        """What sets the limit, to be followed by the number of tokens."""
        pool = self._scheduling.pool
        if pool is None or self.tokens == self._longest:
            return "the model's context is"
        size = self._scheduling.block_size
        return f"the whole KV pool ({pool.num_blocks} blocks of {size} tokens) holds"


@dataclass(slots=True)
class CoreState:
    """The state of one engine core. Each part guards what it owns; handlers combine them.

    What a part takes part in follows from its class: see parts.py. So a new one is a field here,
    which `make_core_state` fills.
    """

    facts: EngineFacts  # what doesn't change in a life, but for the version of the weights
    scheduling: SchedulerState  # queue, slots, KV blocks, and the steps in flight
    context_limit: ContextLimit  # how long a sequence may get with the present pool
    frontends: Frontends  # sessions of front ends, and their open requests
    kept_answers: KeptAnswers  # which of them, and of ended ones, other front ends may claim
    shared_answers: SharedAnswers  # which of them several requests of front ends get
    workers: Workers  # the rank group and its health
    grammars: GrammarManager  # grammars of structured output, and the sequences that wait for them
    media: MediaManager  # items of prompts, the sequences that wait for them, and what is encoded
    adapters: AdapterManager  # which adapters are loaded, and which sequences wait for one
    adapter_names: AdapterNames  # adapters by the names that requests use
    remote_kv: RemoteKV  # sequences that wait for KV blocks from disk or other workers
    disk_kv: DiskKV  # questions for, and reads of, such KV blocks
    expected_prompts: ExpectedPrompts  # prompts that another engine core computes first
    kv_sessions: KVSessions  # conversations whose KV blocks are kept until they come back
    calls: WorkerCalls  # calls of worker extensions' methods
    service_rate: ServiceRate  # how fast requests leave the queue
    counts: EngineCounts  # for metrics; no decision depends on them
    effects: Effects  # what the next call of EngineCore.step returns
    clock: Clock  # the time of the event that is being handled
    step_clock: StepClock  # when the oldest step in flight began
    sleep: SleepState  # whether the model's memory is given back
    weights: WeightsChange  # a replacement of the model's weights, if one goes on
    drain: Drain  # the engine core's orderly end, if it has begun
    audits: LiveAudit | None = None  # answers that are computed again; None: none are
    paused: bool = False  # whether a front end has had steps paused
    absent: frozenset[str] = frozenset()  # parts that the model or the settings rule out: idle

    def timed_parts(self) -> list[HasDeadline]:
        """The parts that may have a deadline."""
        return [part for part in self._present() if isinstance(part, HasDeadline)]

    def restless_parts(self) -> list[Restless]:
        """The parts for which a turn may have something that nothing announces."""
        return [part for part in self._present() if isinstance(part, Restless)]

    def holding_parts(self) -> list[HoldsSequences]:
        """The parts in which sequences may wait."""
        return [part for part in self._present() if isinstance(part, HoldsSequences)]

    def reporting_parts(self) -> list[ReportsStatus]:
        """The parts whose status goes to front ends."""
        return [part for part in self._present() if isinstance(part, ReportsStatus)]

    def scheduler_features(self) -> list[SchedulerFeature]:
        """The parts that are asked where sequences start and steps are made, in this order."""
        parts = (("adapters", self.adapters), ("media", self.media), ("audits", self.audits))
        return [part for name, part in parts if part is not None and self.has(name)]

    def serving_parts(self) -> list[ServesFrontends]:
        """The parts that do what front ends ask for."""
        return [part for part in self._present() if isinstance(part, ServesFrontends)]

    def has(self, part: str) -> bool:
        """Whether the model and the settings have something for the part of this name to do."""
        return part not in self.absent

    def _present(self) -> list[object]:
        names = (each.name for each in fields(self))
        return [getattr(self, name) for name in names if name not in self.absent]

    @property
    def num_waiting(self) -> int:
        """Number of sequences that wait, in the queue or for a grammar, media, an adapter or KV
        blocks."""
        return self.scheduling.queue.num_sequences + sum(
            part.num_waiting for part in self.holding_parts()
        )

    def enter(self, sequence: Sequence) -> None:
        """Puts a WAITING sequence that needs nothing but its turn into the queue, or has it wait
        for its grammar."""
        if self.grammars.is_ready(sequence.request):
            self.scheduling.add(sequence)
        else:
            self.grammars.park(sequence)

    def uses(self, tier: str) -> bool:
        """Whether audits have found nothing against a tier of the KV cache."""
        return self.audits is None or tier not in self.audits.off

    @property
    def shares_prefixes(self) -> bool:
        """Whether requests use KV blocks of others."""
        return self.facts.config.cache.enable_prefix_caching and self.uses("prefix_cache")

    @property
    def draining(self) -> bool:
        """Whether new requests are rejected because the engine core shuts down."""
        return self.drain.began is not None

    @property
    def stands_still(self) -> bool:
        """Whether no step is to be planned, and those that were in flight have ended."""
        return self.plans_nothing and not self.scheduling.in_flight

    @property
    def plans_nothing(self) -> bool:
        """Whether steps are stopped: the engine core is paused, its model sleeps, or its weights
        are about to be replaced."""
        return self.paused or self.sleep.level > 0 or self.weights.due

    @property
    def asleep(self) -> bool:
        """Whether the model sleeps: all workers have given back the memory that they were to."""
        if not self.sleep.level:
            return False
        ranks = self.workers.ranks
        return self.sleep.settled(ranks.size, bool(ranks.formed))

    def health(self, now: float) -> tuple[bool, str]:
        """(Whether requests are accepted, why not). A model that sleeps counts as ready: requests
        wait, and the request to wake it must come through load balancers that ask for readiness. So
        does a model that is being loaded for a request, unless its worker has reported a fault."""
        rousing = now < self.sleep.rousing_until and self.workers.fault is None
        return (True, "") if self.sleep.level or rousing else self.workers.health(now)


def make_core_state(facts: EngineFacts) -> CoreState:
    """The state of an engine core that has just started: no sessions, no requests."""
    config = facts.config
    effects = Effects()
    scheduling = SchedulerState(
        config.scheduler,
        facts.block_size,
        facts.longest_sequence,
        make_policy(config.scheduler, facts.tenants()),
        config.cache.session_kv_share,
    )
    times = config.transport
    workers = Workers(
        config.parallel, facts.created, times.progress_timeout, times.stuck_timeout, effects
    )
    clock = Clock()
    frontends, counts = Frontends(), EngineCounts()
    shared_answers = frontends.shared = SharedAnswers(frontends)
    media = MediaManager(
        scheduling,
        frontends,
        workers,
        counts,
        clock,
        load_bytes=config.cache.media_load_mib * 2**20,
        step_rows=config.scheduler.max_encoded_rows,
    )
    remote_kv = RemoteKV(config.scheduler.max_waiting_requests)
    adapters = AdapterManager(facts.max_loras, scheduling, workers, counts)
    absent = {
        name
        for name, there in (("media", facts.takes_media), ("adapters", facts.max_loras > 0))
        if not there
    }
    state = CoreState(
        facts=facts,
        scheduling=scheduling,
        context_limit=ContextLimit(facts.longest_sequence, scheduling),
        frontends=frontends,
        kept_answers=KeptAnswers(config.scheduler.resume_grace_seconds),
        shared_answers=shared_answers,
        workers=workers,
        grammars=GrammarManager(config.grammar, scheduling, workers),
        media=media,
        adapters=adapters,
        adapter_names=AdapterNames(facts.adapters),
        remote_kv=remote_kv,
        disk_kv=DiskKV(scheduling, workers, remote_kv, counts),
        expected_prompts=ExpectedPrompts(),
        kv_sessions=KVSessions(
            scheduling,
            clock,
            config.cache.kv_retention_seconds,
            config.cache.max_kv_retention_seconds,
        ),
        calls=WorkerCalls(scheduling, workers, frontends, facts.call_bytes),
        service_rate=ServiceRate(),
        counts=counts,
        effects=effects,
        clock=clock,
        step_clock=StepClock(clock),
        sleep=SleepState(facts.asleep),
        drain=Drain(config.cache),
        weights=WeightsChange(frontends),
        absent=frozenset(absent),
    )
    if config.scheduler.audit_share:
        from penstock_engine.waiting.live_audit import LiveAudit

        state.audits = LiveAudit(
            config.scheduler.audit_share,
            config.cache,
            scheduling,
            frontends,
            state.grammars,
            adapters,
            state.disk_kv,
        )
    scheduling.features = SchedulerFeatures(state.scheduler_features())
    return state
