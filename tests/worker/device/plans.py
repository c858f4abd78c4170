"""Runs jobs with several steps in flight: a scheduler that plans ahead of what it has heard."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from penstock.model.kv_layout import KVGroup
from penstock.protocol.common import TokenLogprobs
from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from penstock_worker.steps.in_flight import Begins, PendingStep
from tests.worker.driver import Job


@dataclass
class Place:
    """A job that runs. scheduled, expected: tokens that are computed and there when all steps in
    flight are done.  told: the last results of its prompt.  drafts: of its steps in flight.
    checkpoints: their blocks."""

    job: Job
    slot: int
    blocks: list[int]
    scheduled: int = 0
    expected: int = 0
    in_flight: int = 0
    leaves: bool = False
    told: list[TokenLogprobs] = field(default_factory=list)
    drafts: int = 0
    checkpoints: list[int] = field(default_factory=list)


class Ahead:
    """depth: steps in flight, at random fewer.  preempt_every, seed, budget: as of Driver.
    draft: tokens that a job may draft in every other step that reaches its end; the next may be
    sent before it is known how many were right."""

    def __init__(
        self,
        runner: Begins,
        *,
        depth: int = 2,
        budget: int = 64,
        block_size: int = 4,
        num_blocks: int = 256,
        slots: int = 8,
        preempt_every: int = 0,
        seed: int = 0,
        draft: int = 0,
        states: KVGroup | None = None,
    ) -> None:
        """`states`: the group of recurrent layers' states."""
        self.runner = runner
        self.states = states
        self.depth = depth
        self.budget = budget
        self.block_size = block_size
        self.draft = draft
        self.preempt_every = preempt_every
        self.random = random.Random(seed)
        self.free_blocks = list(range(num_blocks))
        self.random.shuffle(self.free_blocks)
        self.free_slots = list(range(slots))
        self.places: dict[int, Place] = {}
        """Places by the job's identity."""
        self.released: list[int] = []
        self._told: dict[int, list[TokenLogprobs]] = {}
        self.flight: deque[tuple[PendingStep, list[tuple[Place, SlotWork]]]] = deque()
        self.step = 0
        self.most_in_flight = 0
        self.most_behind_drafts = 0
        """Drafts that were in flight when a job got further work."""

    def run(self, jobs: list[Job]) -> list[Job]:
        while any(not job.done for job in jobs) or self.flight:
            depth = self.depth if self.depth < 2 else self.random.randint(1, self.depth)
            while len(self.flight) < depth and self.begin(jobs):
                pass
            self.most_in_flight = max(self.most_in_flight, len(self.flight))
            self.settle()
        return jobs

    def told_of(self, job: Job) -> list[TokenLogprobs]:
        """Log-probabilities of its prompt."""
        return self._told[id(job)]

    def begin(self, jobs: list[Job]) -> bool:
        """Whether there was anything to do."""
        if self.preempt_every and (self.step + 1) % self.preempt_every == 0:
            running = [place for place in self.places.values() if not place.leaves]
            if running:
                self.random.choice(running).leaves = True
        self._release()
        admitted: list[NewSequence] = []
        did: list[tuple[Place, SlotWork]] = []
        left = self.budget
        for job in self.random.sample(jobs, len(jobs)):
            place = self.places.get(id(job))
            if job.done or (place is None and not self.free_slots):
                continue
            if place is None:
                place = Place(job, self.free_slots[-1], [])
                place.expected = len(job.prompt) + len(job.tokens)
            work = self._work(place, left)
            if work is None:
                continue
            if id(job) not in self.places:
                self.places[id(job)] = place
                self._told[id(job)] = place.told
                self.free_slots.pop()
                admitted.append(_in_full(place))
                work = SlotWork(work.slot, work.start, work.count)
            left -= work.count
            did.append((place, work))
        if not did:
            return False
        self.step += 1
        works = [work for _, work in did]
        plan = Plan(self.step, self.step - 1, self.released, admitted, works)
        self.released = []
        self.flight.append((self.runner.begin(plan), did))
        return True

    def _work(self, place: Place, left: int) -> SlotWork | None:
        job = place.job
        known = len(job.prompt) + len(job.tokens)
        behind = place.expected - place.scheduled
        furthest = place.expected + place.drafts
        if furthest >= len(job.prompt) + job.wanted:
            behind -= 1  # Its last token may be on its way, and nothing follows it.
        if place.expected > known and job.grammar is not None:
            return None
        count, drafts = min(behind, left), 0
        if self.draft and place.expected == place.scheduled + count and place.blocks:
            room = min(left - count, len(job.prompt) + job.wanted - furthest - 1)
            drafts = max(0, min(self.draft, room)) if self.random.random() < 0.5 else 0
        new = -(-(place.scheduled + count + place.drafts + drafts) // self.block_size)
        new = max(0, new - len(place.blocks))
        if count < 1 or place.leaves or new > len(self.free_blocks):
            return None
        blocks = [self.free_blocks.pop() for _ in range(new)]
        place.blocks += blocks
        after = place.drafts > 0
        work = SlotWork(
            place.slot,
            place.scheduled,
            count,
            blocks,
            draft=drafts,
            after_drafts=after,
            states=self._checkpoints(place),
        )
        self.most_behind_drafts = max(self.most_behind_drafts, place.drafts)
        place.drafts += drafts
        place.scheduled += count
        place.expected += place.scheduled == place.expected
        place.in_flight += 1
        return work

    def _checkpoints(self, place: Place) -> list[int]:
        """Blocks of those that its table has room for now."""
        if self.states is None or self.states.every is None:
            return []
        room = len(place.blocks) * self.block_size // self.states.every * self.states.blocks
        new = [self.free_blocks.pop() for _ in range(room - len(place.checkpoints))]
        place.checkpoints += new
        return new

    def _release(self) -> None:
        for name, place in list(self.places.items()):
            if place.in_flight or not (place.leaves or place.job.done):
                continue
            self.released.append(place.slot)
            self.free_slots.append(place.slot)
            self.free_blocks += place.blocks + place.checkpoints
            del self.places[name]
            place.job.preempted += place.leaves

    def settle(self) -> None:
        pending, did = self.flight.popleft()
        result = pending.result()
        assert pending.done()
        assert [each.slot for each in result.slots] == [work.slot for _, work in did]
        assert result.compute_seconds >= 0
        for (place, work), outcome in zip(did, result.slots, strict=True):
            place.in_flight -= 1
            place.drafts -= work.draft
            place.job.steps += 1
            self._take(place, work, outcome)

    def _take(self, place: Place, work: SlotWork, outcome: SlotResult) -> None:
        job = place.job
        if job.done:
            return
        job.error = outcome.error
        place.told += outcome.prompt_logprobs or []
        if outcome.deferred:
            job.deferred += 1
            place.scheduled -= 1
            place.expected -= 1
        elif outcome.error is None:
            ends = work.start + work.count == len(job.prompt) + len(job.tokens)
            assert (outcome.token is not None) == (ends or work.after_drafts)
        if outcome.token is not None:
            job.tokens += [outcome.token, *outcome.more]
            job.logprobs += [
                outcome.logprobs,
                *(outcome.more_logprobs or [None] * len(outcome.more)),
            ]
            place.scheduled += len(outcome.more)
            place.expected += len(outcome.more)
            job.drafted += outcome.drafted
            job.kept += len(outcome.more)
            while job.ends and job.done and job.tokens[:-1] and job.tokens[-2] in job.ends:
                job.tokens.pop()  # Behind the one that ended it.
                job.logprobs.pop()


def _in_full(place: Place) -> NewSequence:
    job = place.job
    return NewSequence(
        slot=place.slot,
        tokens=job.prompt + job.tokens,
        num_prompt=len(job.prompt),
        index=job.index,
        sampling=job.sampling,
        blocks=list(place.blocks),
        states=list(place.checkpoints),
        grammar=job.grammar,
        prediction=job.prediction,
        prompt_from=1 if job.sampling.prompt_logprobs is not None else None,
    )
