"""Drafts by a small model, which reads the same tokens and is asked what comes next.

It samples with the draws that the served model is going to sample with (seed, sequence, index), so
that both choose alike as often as their distributions allow. Its choices are checked like any other
drafts: what it computes is never part of an output.

Prompts are computed beside the served model's, step by step. Tokens that were emitted while nobody
asked for drafts are computed when somebody does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from penstock.protocol.common import TokenSampling
from penstock.protocol.to_worker import FetchKV, Plan, SlotWork
from penstock_worker.batch.slots import Slot, Slots
from penstock_worker.forward.interface import Batch, Forward
from penstock_worker.sampler.queued import QueuedSampler
from penstock_worker.speculation.draft_rows import DraftRows
from penstock_worker.speculation.draft_sampling import (
    DraftLimits,
    DraftSampler,
    without_logprobs,
)


@dataclass
class DraftedSlot:
    """How far the draft model has come with the sequence in a slot."""

    sampling: TokenSampling  # Without log-probabilities.
    computed: int  # Tokens that it has computed, from the first one on.
    noted: int  # Tokens whose rows have been told to DraftRows.
    end: int = 0  # Tokens that the sequence had when it was last drafted for.
    tail: list[int] = field(default_factory=list)
    """Drafts after `end` whose rows have been computed."""

    def settle(self, token_ids: Sequence[int]) -> None:
        """Counts the drafts that have become tokens as computed."""
        kept = 0
        for draft, token in zip(self.tail, token_ids[self.end :], strict=False):
            if draft != token:
                break
            kept += 1
        if self.tail:
            self.computed = self.end + kept
            self.tail = []


@dataclass
class _Chunk:
    """What one step computes for a slot: its tokens [start, stop), and then so many drafts."""

    number: int  # The slot's.
    slot: Slot
    state: DraftedSlot
    start: int
    stop: int
    most: int
    end: int  # Of what the served model computes.
    drafts: list[int] = field(default_factory=list)
    passed: int = 0  # Drafts whose rows have been computed.

    @property
    def sampling(self) -> TokenSampling:
        return self.state.sampling

    def fail(self) -> None:
        """Notes a pass that failed: none of its tokens counts as computed."""
        self.stop, self.passed = self.start, 0
        self.drafts.clear()


class DraftModel:
    """A proposer. May be called from several threads at once, with works that have no slot in
    common, where `forward` may."""

    def __init__(
        self,
        forward: Forward,
        sampler: QueuedSampler,
        slots: Slots,
        rows: DraftRows,
        limits: DraftLimits,
        groups: int = 1,
    ) -> None:
        """`forward` has `groups` times as many blocks as `rows`: each KV group of the draft model
        has all blocks of the first group's tables, one group after another.
        """
        self._forward = forward
        self._sampler = DraftSampler(sampler, limits)
        self._slots = slots
        self._rows = rows
        self._limits = limits
        self._groups = groups
        self._drafted: dict[int, DraftedSlot] = {}

    def take(self, plan: Plan) -> None:
        """Takes note of a plan that was applied to the slots."""
        self._rows.copied(plan.copies)
        for work in plan.work:
            self._rows.given(work.new_blocks)
        for number in plan.released:
            self._drafted.pop(number, None)

    def fetched(self, message: FetchKV) -> None:
        """Follows copies of blocks. Fetched blocks have none of the model's rows, which are
        computed where they are wanted."""
        self._rows.copied(message.copies)
        self._rows.given(message.blocks)

    def first(self, number: int) -> int | None:
        """Returns None: no draft is known before it is computed."""
        return None

    def undo(self, scheduled: Sequence[SlotWork]) -> None:
        """Does nothing: tokens that were computed are the slot's, and are right."""

    def reset(self) -> None:
        """Forgets all sequences."""
        self._drafted.clear()
        self._rows.clear()

    def proposed(self, number: int) -> int:
        """Returns how many tokens can be proposed after the slot's."""
        return min(self._limits.drafts, self._room(len(self._slots[number].token_ids)))

    def propose(self, scheduled: Sequence[SlotWork]) -> list[list[int]]:
        """Computes what the works compute, where that is a prompt's or drafts are asked for.
        Returns drafts after each work's tokens, at most as many as it allows."""
        spare, chunks = self._limits.catch_up, []
        for work, slot in zip(scheduled, self._slots.of(scheduled), strict=True):
            chunk = self._chunk(work, slot, spare)
            spare -= max(0, chunk.stop - chunk.start - work.count)
            chunks.append(chunk)
        computing = [chunk for chunk in chunks if chunk.stop > chunk.start]
        try:
            if computing:
                with torch.inference_mode():
                    self._draft(computing)
        except BaseException:
            for chunk in computing:
                chunk.fail()
            raise
        finally:
            for chunk in chunks:
                self._note(chunk)
        return [chunk.drafts for chunk in chunks]

    def _chunk(self, work: SlotWork, slot: Slot, spare: int) -> _Chunk:
        """Returns what is to be computed for a work. `spare`: tokens that may be computed beside
        the work's."""
        state, end = self._state(work, slot), work.start + work.count
        stop, most = min(end, self._limits.positions, slot.known), 0
        if work.draft and end == len(slot.token_ids):
            most = min(work.draft, self._room(end))
        # Of tokens that are all computed, the last one is again, for its logits.
        start = min(state.computed, stop - 1) if most else state.computed
        if work.count == 1 and not most:
            stop = start  # It will be computed when drafts are asked for.
        stop = max(start, min(stop, start + work.count + spare))
        return _Chunk(work.slot, slot, state, start, stop, most if stop == end else 0, end)

    def _note(self, chunk: _Chunk) -> None:
        state = chunk.state
        state.computed = max(state.computed, chunk.stop)
        self._rows.note(chunk.slot.blocks, min(chunk.start, state.noted), chunk.end, state.computed)
        state.noted = state.end = chunk.end
        state.tail = chunk.drafts[: chunk.passed]

    def _state(self, work: SlotWork, slot: Slot) -> DraftedSlot:
        state = self._drafted.get(work.slot)
        if state is None:
            found = self._rows.leading(slot.blocks, work.start)
            state = DraftedSlot(without_logprobs(slot.sampling), found, noted=work.start)
            self._drafted[work.slot] = state
        state.settle(slot.token_ids)
        return state

    def _room(self, end: int) -> int:
        return max(0, self._limits.positions - end)

    def _draft(self, chunks: list[_Chunk]) -> None:
        """Computes the tokens that aren't computed yet in one pass, which gives the first drafts,
        then one pass for each further draft."""
        counts = np.array([chunk.stop - chunk.start for chunk in chunks], dtype=np.int64)
        tokens = [
            token for chunk in chunks for token in chunk.slot.token_ids[chunk.start : chunk.stop]
        ]
        starts = np.array([chunk.start for chunk in chunks], dtype=np.int64)
        asking = np.array([chunk.most > 0 for chunk in chunks])
        logits = self._pass(chunks, tokens, starts, counts, (np.cumsum(counts) - 1)[asking])
        drafting = [chunk for chunk in chunks if chunk.most > 0]
        while drafting:
            drafting = self._sampler.sample(drafting, logits)
            if not drafting:
                break
            newest = [chunk.drafts[-1] for chunk in drafting]
            ends = np.array([c.end + len(c.drafts) - 1 for c in drafting], dtype=np.int64)
            ones = np.ones(len(drafting), dtype=np.int64)
            logits = self._pass(drafting, newest, ends, ones, np.arange(len(drafting)))
            for chunk in drafting:
                chunk.passed += 1

    def _pass(
        self,
        chunks: list[_Chunk],
        tokens: list[int],
        starts: np.ndarray,
        counts: np.ndarray,
        rows: np.ndarray,
    ) -> Tensor:
        """Returns the logits of the given rows, [rows, vocab]."""
        bounds = self._slots.bounds
        widths = -(-(starts + counts) // bounds.block_size)
        numbers = [chunk.number for chunk in chunks]
        tables = self._slots.tables.of(numbers, widths)
        further = tuple(
            [table + group * self._rows.blocks for table in tables]
            for group in range(1, self._groups)
        )
        batch = Batch(np.array(tokens, dtype=np.int64), tables, starts, counts, further, numbers)
        return self._forward.logits(batch, rows)
