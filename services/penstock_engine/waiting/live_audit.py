"""Answers that are computed once more while nobody waits, and compared with what was given.

An output depends on its request alone, so whatever differs was computed wrongly or came from
contents of the cache that were damaged.  A replay uses nothing of the cache, drafts nothing, and
has its steps to itself.  It is compared token by token, and goes on where it was interrupted.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from penstock.config.settings import CacheSettings
from penstock.process import logs
from penstock.protocol.common import Stopping
from penstock.protocol.from_frontend import OpenSequence, Submit
from penstock.protocol.from_worker import SlotResult
from penstock_engine.kv.cache import HOST, STORED
from penstock_engine.kv.keys import root_key
from penstock_engine.parts import HasDeadline, Restless
from penstock_engine.request.request import AuditTrail, Request, Sequence
from penstock_engine.request.states import SequenceState
from penstock_engine.request.step_builder import StepBuilder
from penstock_engine.scheduler.features import SchedulerFeature
from penstock_engine.scheduler.prefix_reuse import Start
from penstock_engine.scheduler.state import SchedulerState
from penstock_engine.sessions.frontends import Frontends
from penstock_engine.waiting.adapter_entry import AdapterStage
from penstock_engine.waiting.adapters import AdapterManager
from penstock_engine.waiting.disk_kv import DiskKV
from penstock_engine.waiting.grammars import GrammarManager

log = logs.get(__name__)

MAX_AUDITS = 64
MAX_AUDIT_TOKENS = 262_144
"""Bounds of what waits to be audited: sequences, and tokens of their prompts and outputs."""

MAX_AUDIT_AGE = 600.0
"""Seconds that it waits."""

AUDIT_STEP_TOKENS = 256
"""Most tokens of an audit's step: a request that comes meanwhile waits for that step's end."""

PREFIX_CACHE, NO_TIER = "prefix_cache", "none"

AUDITED_ENDS = (
    SequenceState.FINISHED_STOPPED,
    SequenceState.FINISHED_LENGTH,
    SequenceState.FINISHED_REPETITION,
)

Sampled = tuple[int | None, float | None]
"""A token, and its log-probability where both runs know it."""


@dataclass(slots=True, eq=False)
class AuditRecord:
    """request: that of the replay, which has a sequence only while it runs.  index, tokens: of the
    sequence that has ended.  logprobs: of its last tokens.  reused: as in AuditTrail.  until: when
    it is given up.  verified: tokens that were computed again and are equal.  disputed: what came
    instead of the next one."""

    request: Request
    index: int
    tokens: array[int]
    logprobs: array[float]
    reused: int
    until: float
    verified: int = 0
    disputed: Sampled | None = None

    @property
    def num_tokens(self) -> int:
        """Prompt and output."""
        return len(self.request.prompt_token_ids) + len(self.tokens)

    def pair(self, outcome: SlotResult) -> tuple[Sampled, Sampled]:
        """The next token as it was given, and as it was computed again."""
        known = self.verified - (len(self.tokens) - len(self.logprobs))
        given, computed = self.tokens[self.verified], outcome.token
        if known < 0 or outcome.logprobs is None:
            return (given, None), (computed, None)
        return (given, self.logprobs[known]), (computed, outcome.logprobs.logprob)


class LiveAudit(SchedulerFeature, HasDeadline, Restless):
    """Chooses requests, keeps what is known of their sequences, and replays them one by one.

    equal, different: audits by result.  skipped: those that were not done, by reason.  found:
    differences by tier.  off: tiers that are not used any more.
    """

    def __init__(
        self,
        share: float,
        cache: CacheSettings,
        scheduling: SchedulerState,
        frontends: Frontends,
        grammars: GrammarManager,
        adapters: AdapterManager,
        disk_kv: DiskKV,
    ) -> None:
        """share: of requests, 0 to 1."""
        self.equal = self.different = 0
        self.skipped: dict[str, int] = {}
        self.found: dict[str, int] = {}
        self.off: list[str] = []
        self._below = int(share * 2**64)
        self._scheduling = scheduling
        self._frontends = frontends
        self._grammars = grammars
        self._adapters = adapters
        self._disk_kv = disk_kv
        places = {"disk": cache.disk_kv_dir, "store": cache.kv_store, "peer": cache.kv_peers}
        self._stored = "+".join(name for name, used in places.items() if used)
        self._waiting: deque[AuditRecord] = deque()
        self._tokens = 0  # of all that waits
        self._number = 0  # of the latest audit
        self._exact = True
        self._free = False  # the next step would be empty

    @property
    def sequence(self) -> Sequence | None:
        """The replay that runs. It is in a slot, and in neither the queue nor the policy."""
        return self._scheduling.replayed

    @property
    def num_held(self) -> int:
        """Audits that wait, or run."""
        return len(self._waiting)

    def requests(self) -> Iterator[Request]:
        """The requests of all replays."""
        return (record.request for record in self._waiting)

    def attach(self, *, exact: bool) -> None:
        """A worker is ready. exact: whether its results don't depend on the batch."""
        if not exact and self._exact:
            log.warning("nothing is audited: without batch_invariant, bits depend on the batch")
        self._exact = exact

    def watch(self, request: Request) -> None:
        """A request was accepted. If it is chosen, what it is given is noted from now on."""
        name = f"{request.name}\0{request.number}".encode(errors="replace")
        if int.from_bytes(blake2b(name, digest_size=8).digest()) >= self._below:
            return
        unfit = _unfit(request) if self._exact else "inexact"
        if unfit:
            _count(self.skipped, unfit)
            return
        hidden = request.sampling.logprobs is None
        if hidden:
            request.sampling = msgspec.structs.replace(request.sampling, logprobs=0)
        for sequence in request.sequences.values():
            sequence.trail = AuditTrail(hidden=hidden)

    def ended(self, sequence: Sequence, now: float) -> None:
        """A sequence that was watched has ended; its request still holds what it needed."""
        trail, request = sequence.trail, sequence.request
        if trail is None or not sequence.emitted:
            return
        size = len(request.prompt_token_ids) + len(sequence.emitted)
        if sequence.state not in AUDITED_ENDS:
            _count(self.skipped, "aborted")
        elif len(self._waiting) >= MAX_AUDITS or self._tokens + size > MAX_AUDIT_TOKENS:
            _count(self.skipped, "full")
        elif not self._grammars.is_ready(request):
            _count(self.skipped, "grammar")
        elif not self._is_loaded(request):
            _count(self.skipped, "adapter")
        else:
            sampled = len(sequence.emitted) - sequence.brought
            logprobs = trail.logprobs if len(trail.logprobs) == sampled else array("d")
            self._add(sequence, trail.reused, logprobs, now)

    def _add(self, sequence: Sequence, reused: int, logprobs: array[float], now: float) -> None:
        original = sequence.request
        self._number += 1
        replay = _replay_of(original, len(sequence.emitted), self._number)
        self._grammars.share(replay, original.grammar)
        self._adapters.hold(replay)
        until = now + MAX_AUDIT_AGE
        record = AuditRecord(
            replay, sequence.index, array("i", sequence.emitted), logprobs, reused, until
        )
        self._waiting.append(record)
        self._tokens += record.num_tokens

    def _is_loaded(self, request: Request) -> bool:
        if request.adapter is None:
            return True
        entry = self._adapters.places.loaded.get(request.adapter.digest)
        return entry is not None and entry.stage is AdapterStage.READY

    def advance(self, now: float, *, free: bool) -> None:
        """Gives up what is too old, and gives way at once if the next step is not free or a request
        is open. Called before each plan."""
        while self._waiting and self._waiting[0].until <= now:
            self._skip("busy")
        self._free = free and not self._frontends.open_requests
        if not self._free:
            self._withdraw()

    @property
    def is_restless(self) -> bool:
        """Whether there is something to replay, in steps that would be empty otherwise."""
        return bool(self._waiting)

    def next_deadline(self) -> float:
        """The time at which the first is given up."""
        return self._waiting[0].until if self._waiting else math.inf

    def worker_lost(self) -> None:
        """Gives up all: what they might have been accused of is gone. Called before the scheduler
        forgets the worker, so that no replay is among the suspects."""
        while self._waiting:
            self._skip("worker_lost")

    def fill(self, builder: StepBuilder) -> None:
        """The next tokens of the replay that runs, or of the first that there is room for."""
        if not self._free or self._scheduling.in_flight:
            return
        if self.sequence is not None:
            self._go_on(self.sequence, builder)
        while not builder.items and self._waiting and self._scheduling.free_slots:
            self._begin(self._waiting[0], builder)

    def _go_on(self, sequence: Sequence, builder: StepBuilder) -> None:
        scheduling = self._scheduling
        table, cache, start = sequence.table, scheduling.cache, sequence.progress.scheduled
        if table is None or cache is None:
            return
        room = table.capacity + scheduling.kv_groups.room(table, cache.pool.num_free)
        end = min(sequence.progress.expected, start + min(AUDIT_STEP_TOKENS, builder.left), room)
        if end <= start:
            self._skip("no_room")  # Blocks that are fetched for others have taken it.
            return
        new = table.grow(cache, end) if end > table.capacity else []
        builder.schedule(sequence, start, end, new)
        builder.alone = True

    def _begin(self, record: AuditRecord, builder: StepBuilder) -> None:
        """Starts a replay, or skips it unless the pool has room for all of it."""
        scheduling, request = self._scheduling, record.request
        cache, reuse, groups = scheduling.cache, scheduling.prefix_reuse, scheduling.kv_groups
        if cache is None or reuse is None:
            raise ValueError("a replay can't start without a worker")
        needed = groups.needed(record.num_tokens, AUDIT_STEP_TOKENS)
        if needed > cache.pool.num_free or not self._is_loaded(request):
            self._skip("no_room" if needed > cache.pool.num_free else "adapter")
            return
        request.advance([OpenSequence(record.index, record.tokens[: record.verified].tolist())])
        sequence = scheduling.replayed = request.sequences[record.index]
        sequence.move(SequenceState.RUNNING)
        sequence.table = reuse.table(sequence, Start(0, None, 0, needed))
        scheduling.occupy(sequence, scheduling.free_slots.pop())
        sequence.progress.start(0)
        end = min(sequence.num_tokens, AUDIT_STEP_TOKENS, builder.left)
        sequence.table.grow(cache, end)
        builder.admit(sequence)
        builder.schedule(sequence, 0, end, [])
        builder.alone = True

    def take(self, sequence: Sequence, outcome: SlotResult) -> None:
        """A step has computed a token of the replay again, or failed to.

        What differs is computed once more, so that an error in the replay itself accuses no tier.
        """
        record = self._waiting[0]
        if outcome.error is not None:
            self._skip("error")
            return
        given, computed = record.pair(outcome)
        if computed != given and record.disputed is None:
            record.disputed = computed
            self._withdraw()
        elif computed != given or record.disputed is not None:
            self._differs(record, computed)
        else:
            record.verified += 1
            sequence.delivered = record.verified
            if record.verified == len(record.tokens):
                self.equal += 1
                self._close()

    def _differs(self, record: AuditRecord, computed: Sampled) -> None:
        tiers = self._suspected(record.reused) if computed == record.disputed else [NO_TIER]
        self.different += 1
        log.error(
            "an answer can't be reproduced",
            request=record.request.name,
            sequence=record.index,
            token=record.verified,
            tiers=",".join(tiers),
        )
        self._close()
        for tier in tiers:
            _count(self.found, tier)
            self._switch_off(tier)
        if self._scheduling.cache is not None:
            self._scheduling.cache.forget_all()

    def _suspected(self, reused: int) -> list[str]:
        """The tiers from which some of it came: the outer ones, where there are any."""
        outer = [name for bit, name in ((HOST, "host"), (STORED, self._stored)) if reused & bit]
        return outer or [PREFIX_CACHE if reused else NO_TIER]

    def _switch_off(self, tier: str) -> None:
        if tier == NO_TIER or tier in self.off:
            return
        log.error("a tier of the KV cache is switched off until a restart", tier=tier)
        self.off.append(tier)
        if tier == "host" and self._scheduling.cache is not None:
            self._scheduling.cache.host = None
        elif tier == self._stored:
            self._disk_kv.switch_off()

    def _skip(self, reason: str) -> None:
        """The first is not audited."""
        _count(self.skipped, reason)
        self._close()

    def _close(self) -> None:
        """Forgets the first."""
        self._withdraw()
        record = self._waiting.popleft()
        self._tokens -= record.num_tokens
        self._grammars.release(record.request)
        self._adapters.release(record.request)

    def _withdraw(self) -> None:
        """Ends the replay that runs; a step in flight is the last that computes any of it."""
        scheduling = self._scheduling
        sequence = scheduling.replayed
        if sequence is None:
            return
        if sequence.table is not None and scheduling.cache is not None:
            scheduling.cache.forget_private(sequence.table.blocks)
        scheduling.finish(sequence, SequenceState.FINISHED_ABORTED)
        sequence.request.open, sequence.request.sequences = 0, {}
        scheduling.replayed = None


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def _unfit(request: Request) -> str:
    """Why a request can't be audited; empty: it can."""
    if request.media is not None:
        return "media"  # The front end has the items, for as long as the request is open.
    if request.pooling is not None:
        return "pooling"
    return "beam_search" if request.beams else ""


def _replay_of(request: Request, emitted: int, number: int) -> Request:
    """The request whose sequences emit what those of `request` did, with blocks of its own."""
    original = request.stopping
    stopping: Stopping = msgspec.structs.replace(original, max_tokens=emitted)
    submit = Submit(
        request=number,
        name=request.name,
        prompt_token_ids=request.prompt_token_ids.tolist(),
        sequences=[],
        sampling=msgspec.structs.replace(request.sampling, logprobs=0, prompt_logprobs=None),
        stopping=stopping,
        adapter=request.adapter,
    )
    eos = tuple(sorted(request.eos))
    replay = Request(b"", submit, arrival=0, eos_token_ids=eos, root=root_key("audit", str(number)))
    replay.internal, replay.closed, replay.cached_tokens = True, False, 0
    return replay
