"""Drafts by a small model, which reads the same tokens and is asked what comes next.

What it computes is never part of an output. Prompts are computed along with the served model's,
step by step. Tokens that were emitted while no drafts were needed are computed when drafts are
needed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.protocol.common import TokenSampling
from penstock.protocol.to_worker import SlotWork
from penstock_worker.batch.slots import Slot, Slots
from penstock_worker.forward.interface import Forward
from penstock_worker.sampler.interface import QueuedSampler
from penstock_worker.speculation.drafter import Asked, DraftLimits, DraftRows, Followed, PassDrafter


@dataclass
class DraftedSlot(Followed):
    """How far the draft model has come with the sequence in a slot."""

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
class _Chunk(Asked[DraftedSlot]):
    """What one step computes for a slot."""

    count: int  # Tokens that the served model computes.
    passed: int = 0  # Drafts whose rows have been computed.

    @property
    def caught_up(self) -> int:
        return max(0, self.stop - self.start - self.count)

    def fail(self) -> None:
        super().fail()
        self.passed = 0


class DraftModel(PassDrafter[DraftedSlot, _Chunk]):
    """A proposer that asks a model."""

    def __init__(
        self,
        forward: Forward,
        sampler: QueuedSampler,
        slots: Slots,
        rows: DraftRows,
        limits: DraftLimits,
        groups: int = 1,
    ) -> None:
        """`forward` is the draft model's, which has `groups` KV groups (see PassDrafter)."""
        super().__init__(sampler, slots, rows, limits, groups)
        self._forward = forward

    def _begin(self, sampling: TokenSampling, computed: int, noted: int) -> DraftedSlot:
        return DraftedSlot(sampling, computed, noted)

    def _ask(self, work: SlotWork, slot: Slot, state: DraftedSlot, spare: int) -> _Chunk:
        """Returns what the work computes, where that is a prompt's or drafts are asked for."""
        state.settle(slot.token_ids)
        end = work.start + work.count
        stop, most = min(end, self._limits.positions, slot.known), 0
        if work.draft and end == len(slot.token_ids):
            most = min(work.draft, self._room(end))
        # Of tokens that are all computed, the last one is again, for its logits.
        start = min(state.computed, stop - 1) if most else state.computed
        if work.count == 1 and not most:
            stop = start  # It will be computed when drafts are asked for.
        stop = max(start, min(stop, start + work.count + spare))
        most = most if stop == end else 0
        return _Chunk(work.slot, slot, state, start, stop, most, end, work.count)

    def _note(self, asked: _Chunk) -> None:
        super()._note(asked)
        asked.state.end = asked.end
        asked.state.tail = asked.drafts[: asked.passed]

    def _draft(self, asked: list[_Chunk]) -> None:
        """Computes the rows that aren't computed yet in one pass, which gives the first drafts,
        then one pass for each further draft."""
        tokens = [token for own in asked for token in own.slot.token_ids[own.start : own.stop]]
        starts = np.array([own.start for own in asked], dtype=np.int64)
        counts = np.array([own.stop - own.start for own in asked], dtype=np.int64)
        drafting = [own for own in asked if own.most > 0]
        last = (np.cumsum(counts) - 1)[[own.most > 0 for own in asked]]
        logits = self._forward.logits(self._batch(asked, tokens, starts, counts), last)
        while drafting:
            drafting = self._sampled(drafting, logits)
            if not drafting:
                break
            newest = [own.drafts[-1] for own in drafting]
            places = np.array([own.stop + len(own.drafts) - 1 for own in drafting], dtype=np.int64)
            ones = np.ones(len(drafting), dtype=np.int64)
            batch = self._batch(drafting, newest, places, ones)
            logits = self._forward.logits(batch, np.arange(len(drafting)))
            for own in drafting:
                own.passed += 1
