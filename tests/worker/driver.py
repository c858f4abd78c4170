"""Drives a StepRunner with hand-made plans: a scheduler as small as can be, with every whim a
knob."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from penstock.model.config import ModelConfig
from penstock.protocol.common import Pooling, TokenLogprobs, TokenSampling, Vectors
from penstock.protocol.from_worker import SlotResult
from penstock.protocol.media import Media
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.batch.slots import SlotBounds, Slots
from penstock_worker.forward.reference import ReferenceForward
from penstock_worker.grammar.grammars import SlotGrammars
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.sampler import choose
from penstock_worker.speculation.drafting import Drafting, Proposer
from penstock_worker.steps.feature import StepFeature
from penstock_worker.steps.runner import StepRunner
from tests.worker.cpu_model import CPUModel
from tests.worker.runners import Observer, host_runner

GREEDY = TokenSampling(0, temperature=0.0, logprobs=3)


def make_runner(
    model: DecoderModel | CPUModel,
    *,
    block_size: int = 16,
    num_blocks: int = 512,
    slots: int = 64,
    max_tokens: int = 2048,
    threads: int = 1,
    observer: Observer | None = None,
    grammars: SlotGrammars | None = None,
    proposer: Callable[[Slots], Proposer] | None = None,
    ends: Sequence[int] = (),
    more: Sequence[StepFeature] = (),
) -> StepRunner:
    """ends: ids before which drafts end."""
    config: ModelConfig = model.config
    bounds = SlotBounds(slots, num_blocks, block_size, config.vocab_size, max_tokens)
    if isinstance(model, CPUModel):
        forward = model.forward(block_size=block_size, num_blocks=num_blocks, threads=threads)
        slots_ = Slots(replace(bounds, groups=model.recipe().kv_groups))
        return host_runner(
            forward,
            choose(threads),
            slots_,
            observer=observer,
            grammars=grammars,
            drafting=None if proposer is None else Drafting(slots_, proposer(slots_), ends=ends),
            more=more,
        )
    shape = CacheShape.of(config, block_size, model.embedding.dtype)
    forward = ReferenceForward(model, ReferenceAttention(shape, num_blocks))
    slots_ = Slots(bounds)
    return host_runner(
        forward,
        choose(1),
        slots_,
        threads=threads,
        observer=observer,
        grammars=grammars,
        drafting=None if proposer is None else Drafting(slots_, proposer(slots_), ends=ends),
        more=more,
    )


@dataclass
class Job:
    """A sequence to run until it has `wanted` new tokens, or one of `ends`.

    index: in its request.  grammar: number of a compiled one.  steps: that it was in.
    media: of the prompt.  whole_spans: whether no step may end within a span of it.
    prediction, claimed, scope: see NewSequence.  drafted, kept: tokens, in all steps.
    adapter: digest of a loaded one.  pooling: what it is asked for in place of a token; vectors:
    what that gave.
    """

    prompt: list[int]
    wanted: int
    sampling: TokenSampling = GREEDY
    index: int = 0
    grammar: int | None = None
    ends: tuple[int, ...] = ()
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    error: str | None = None
    slot: int | None = None
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    preempted: int = 0
    deferred: int = 0
    steps: int = 0
    media: Media | None = None
    whole_spans: bool = False
    prediction: list[int] = field(default_factory=list)
    claimed: bool = False
    scope: bytes = b""
    drafted: int = 0
    kept: int = 0
    adapter: str = ""
    pooling: Pooling | None = None
    vectors: Vectors | None = None

    @property
    def done(self) -> bool:
        ended = bool(self.tokens) and self.tokens[-1] in self.ends
        return ended or self.error is not None or len(self.tokens) >= self.wanted

    def fitting(self, count: int) -> int:
        """How many of the next tokens a step may compute."""
        end = self.computed + count
        spans = self.media.spans if self.media and self.whole_spans else ()
        wholes = [(span.offset, span.end) for span in spans]
        if self.media and self.media.joined:
            wholes = [(spans[0].offset, spans[-1].end)]
        for first, last in wholes:
            if first < end < last:
                return first - self.computed
        return count


class Driver:
    """Runs jobs to their ends.

    budget: tokens per step.  preempt_every: every so many steps a running job loses its slot and
    blocks, and starts over.  seed: of the order in which jobs get their turns and blocks.
    draft: tokens that each job may draft in a step, as far as it wants so many.
    extra_steps: tokens that steps of decodes may compute by themselves, likewise.
    """

    def __init__(
        self,
        runner: StepRunner,
        *,
        block_size: int = 16,
        num_blocks: int = 512,
        slots: int = 64,
        budget: int = 2048,
        preempt_every: int = 0,
        seed: int = 0,
        draft: int = 0,
        extra_steps: int = 0,
    ) -> None:
        self.runner = runner
        self.block_size = block_size
        self.budget = budget
        self.preempt_every = preempt_every
        self.draft = draft
        self.extra_steps = extra_steps
        self.random = random.Random(seed)
        self.step = 0
        self.num_groups = num_groups_of(runner)
        """KV groups, each with its table; here none forgets what no layer sees any more."""
        self.free_blocks = list(range(num_blocks))
        self.random.shuffle(self.free_blocks)
        self.free_slots = list(range(slots))
        self.released: list[int] = []
        self.encode: list[str] = []
        """Names of items that the next plan asks for."""

    def run(self, jobs: list[Job]) -> list[Job]:
        while any(not job.done for job in jobs):
            if self.preempt_every and (self.step + 1) % self.preempt_every == 0:
                self._preempt([job for job in jobs if job.slot is not None and not job.done])
            self._step([job for job in jobs if not job.done])
            for job in jobs:
                if job.done and job.slot is not None:
                    self._release(job)
        return jobs

    def _preempt(self, running: list[Job]) -> None:
        if running:
            victim = self.random.choice(running)
            victim.preempted += 1
            self._release(victim)

    def _release(self, job: Job) -> None:
        self.released.append(job.slot)
        self.free_slots.append(job.slot)
        self.free_blocks += job.blocks
        job.slot, job.blocks, job.computed = None, [], 0

    def _step(self, jobs: list[Job]) -> None:
        self.random.shuffle(jobs)
        extra_steps = self._extra_steps_of(jobs)
        admitted, work, ran, left = [], [], [], self.budget
        for job in jobs:
            known = job.prompt + job.tokens
            count = job.fitting(min(left, len(known) - job.computed))
            held = len(job.blocks) // self.num_groups
            draft = self._draft_of(job, count, left)
            end = job.computed + count + draft + extra_steps
            new = max(0, -(-end // self.block_size) - held)
            if count < 1 or self.num_groups * new > len(self.free_blocks):
                continue
            blocks = [self.free_blocks.pop() for _ in range(self.num_groups * new)]
            job.blocks += blocks
            if job.slot is None:
                job.slot = self.free_slots.pop()
                admitted.append(
                    NewSequence(
                        slot=job.slot,
                        tokens=known,
                        num_prompt=len(job.prompt),
                        index=job.index,
                        sampling=job.sampling,
                        blocks=blocks,
                        grammar=job.grammar,
                        media=job.media,
                        draft_scope=job.scope,
                        prediction=job.prediction,
                        claimed=job.claimed,
                        adapter=job.adapter,
                        pooling=job.pooling,
                    )
                )
                blocks = []
            work.append(SlotWork(job.slot, job.computed, count, blocks, draft=draft))
            ran.append(job)
            left -= count + draft
        assert ran, "no job fits the free blocks"
        self.step += 1
        plan = Plan(
            self.step,
            self.step - 1,
            self.released,
            admitted,
            work,
            encode=self.encode,
            extra_steps=extra_steps,
            ends=sorted({each for job in jobs for each in job.ends}),
        )
        self.released, self.encode = [], []
        result = self.runner.execute(plan)
        assert [each.slot for each in result.slots] == [each.slot for each in work]
        for job, did, outcome in zip(ran, work, result.slots, strict=True):
            job.computed += did.count
            ends = job.computed == len(job.prompt) + len(job.tokens)
            job.error = outcome.error
            job.steps += 1
            if outcome.deferred:
                assert ends
                assert job.grammar is not None
                job.deferred += 1
                job.computed -= 1
                continue
            assert (outcome.token is not None) == (ends and outcome.error is None)
            if outcome.token is not None:
                self._take(job, outcome)

    def _extra_steps_of(self, jobs: list[Job]) -> int:
        """All must decode, and have room for as many."""
        decode = all(job.computed + 1 == len(job.prompt) + len(job.tokens) for job in jobs)
        left = min(job.wanted - len(job.tokens) - 1 for job in jobs)
        return max(0, min(self.extra_steps, left)) if decode else 0

    def _draft_of(self, job: Job, count: int, left: int) -> int:
        if job.computed + count < len(job.prompt) + len(job.tokens):
            return 0
        return min(self.draft, left - count, job.wanted - len(job.tokens) - 1)

    def _take(self, job: Job, outcome: SlotResult) -> None:
        logprobs = outcome.more_logprobs or [None] * len(outcome.more)
        for token, each in zip(
            [outcome.token, *outcome.more], [outcome.logprobs, *logprobs], strict=True
        ):
            if not job.done:
                job.tokens.append(token)
                job.logprobs.append(each)
        job.vectors = outcome.vectors
        job.computed += len(outcome.more)
        job.drafted += outcome.drafted
        job.kept += len(outcome.more)


def num_groups_of(runner: Any) -> int:
    """KV groups of a StepRunner's slots, or what another kind of runner says."""
    if isinstance(runner, StepRunner):
        return len(runner._kind.slots.bounds.groups)
    return getattr(runner, "num_groups", 1)


class LogitsOf:
    """An observer that keeps every position's logits of one job, found by its slot."""

    def __init__(self) -> None:
        self.by_slot: dict[int, dict[int, torch.Tensor]] = {}

    def __call__(self, slot: int, start: int, logits: torch.Tensor) -> None:
        rows = self.by_slot.setdefault(slot, {})
        for offset, row in enumerate(logits):
            rows[start + offset] = row.clone()

    def of(self, slot: int) -> torch.Tensor:
        rows = self.by_slot[slot]
        return torch.stack([rows[position] for position in range(len(rows))])
