"""Drafts by a head, which reads the served model's hidden states and is asked what comes next.

Its row i is made of the hidden state at position i and of the token after it. So it is one row
behind the model: when the newest token is known, all its rows are, and the last of them says what
follows. Further drafts are made of its own result in place of a hidden state (Li et al., "EAGLE",
2024), and their rows are computed again when the model's are there.

A hidden state that isn't there any more, as its block was found in the prefix cache and its row
wasn't, is replaced by zeros: that costs at most a draft.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from penstock.protocol.common import TokenSampling
from penstock.protocol.to_worker import Plan, SlotWork
from penstock_worker.batch.slots import Slot, Slots
from penstock_worker.forward.heads import HeadForward
from penstock_worker.forward.interface import Batch
from penstock_worker.sampler.interface import QueuedSampler
from penstock_worker.speculation.drafter import Asked, DraftLimits, DraftRows, Followed, PassDrafter
from penstock_worker.speculation.hidden_rows import HiddenRows

PENDING = 32
"""Rows of a sequence that may wait until there are more of them, or drafts are asked for."""


@dataclass
class _Followed(Followed):
    """How far the head has come with the sequence in a slot."""

    failures: int = 0  # Passes in a row that failed.


@dataclass
class _Rows(Asked[_Followed]):
    """What one step computes for a slot."""

    known: int  # Rows that can be computed, from the first one on.
    hidden: Tensor | None = field(default=None, kw_only=True)
    """The head's result of the last row, [hidden], of which the next draft's row is made."""

    def succeed(self) -> None:
        self.state.failures = 0

    def fail(self) -> None:
        super().fail()
        self.state.failures += 1

    @property
    def unread(self) -> int:
        """The first position whose hidden state may still be read. The last one that was is read
        once more if the launch is tried again. Where passes fail again and again, only a few are
        kept: those that are missing cost drafts, and all of them would take more memory with each
        token."""
        first = self.state.computed - 1
        return first if self.state.failures < 2 else max(first, self.known - PENDING)


class DraftHead(PassDrafter[_Followed, _Rows]):
    """A proposer that asks a head."""

    ahead = 1

    def __init__(
        self,
        head: HeadForward,
        hidden: HiddenRows,
        sampler: QueuedSampler,
        slots: Slots,
        rows: DraftRows,
        limits: DraftLimits,
    ) -> None:
        """`hidden`: filled by each pass of the served model."""
        super().__init__(sampler, slots, rows, limits)
        self._head = head
        self._hidden = hidden

    def take(self, plan: Plan) -> None:
        """Takes note of a plan that was applied to the slots."""
        super().take(plan)
        for number in plan.released:
            self._hidden.forget(number)

    def reset(self) -> None:
        """Forgets all sequences."""
        super().reset()
        self._hidden.clear()

    def _begin(self, sampling: TokenSampling, computed: int, noted: int) -> _Followed:
        return _Followed(sampling, computed, noted)

    def _ask(self, work: SlotWork, slot: Slot, state: _Followed, spare: int) -> _Rows:
        """Returns the rows that have become known, where they are many or drafts are asked for."""
        # A row is made of the token after it, too, which a step in flight may be sampling.
        known = min(work.start, self._limits.positions, slot.known - 1)
        end = work.start + work.count
        most = 0
        if work.draft and work.count == 1 and end == len(slot.token_ids) and known == work.start:
            most = min(work.draft, self._room(end))
        # Of rows that are all computed, the last one is again, for its logits.
        start = min(state.computed, known - 1 if most else known)
        waits = not most and known - start < PENDING
        stop = start if waits else min(known, start + spare)
        most = most if stop == known > 0 else 0
        return _Rows(work.slot, slot, state, max(start, 0), max(stop, start, 0), most, end, known)

    def _note(self, asked: _Rows) -> None:
        super()._note(asked)
        self._hidden.forget(asked.number, before=asked.unread)

    def _first_pass(
        self, asked: list[_Rows], batch: Batch, drafting: list[_Rows], rows: np.ndarray
    ) -> Tensor:
        read = [
            self._hidden.read(own.number, own.slot.token_ids, own.start, own.stop) for own in asked
        ]
        return self._step(batch, torch.cat(read), drafting, rows)

    def _further_pass(self, drafting: list[_Rows], batch: Batch) -> Tensor:
        own = torch.stack([rows.hidden for rows in drafting if rows.hidden is not None])
        return self._step(batch, own, drafting, np.arange(len(drafting)))

    def _step(
        self, batch: Batch, hidden: Tensor, drafting: list[_Rows], rows: np.ndarray
    ) -> Tensor:
        logits, results = self._head.step(batch, hidden, rows)
        for each, result in zip(drafting, results, strict=True):
            each.hidden = result
        return logits
