"""Drafts by an assistant, which borrows the served model's keys and values.

All drafts of a round are made at the newest token's position: of the tokens before it, whose keys
and values are there, of the hidden state of the last of these, and of the newest token. Each
further one is made of the one before it and of what that one's row gave in place of a hidden state
(Gemma 4; transformers' SinglePositionMultiTokenCandidateGenerator). So nothing is stored, and
nothing has to be caught up with.

Without that one hidden state, as after a sequence was swapped in, a step has no drafts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from penstock.protocol.to_worker import Plan, SlotWork
from penstock_worker.batch.slots import Slot, Slots
from penstock_worker.forward.heads import HeadForward
from penstock_worker.forward.interface import Batch
from penstock_worker.sampler.interface import QueuedSampler
from penstock_worker.speculation.drafter import (
    Asked,
    DraftLimits,
    Followed,
    SamplingDrafter,
    without_logprobs,
)
from penstock_worker.speculation.hidden_rows import HiddenRows


@dataclass
class _Drafts(Asked[Followed]):
    """What one step computes for a slot: a row at `start`, once for each draft."""

    unread: int
    """The first position whose hidden state may still be read."""

    @property
    def caught_up(self) -> int:
        return 0

    @property
    def newest(self) -> int:
        return self.drafts[-1] if self.drafts else self.slot.token_ids[self.stop]


class AssistantDrafts(SamplingDrafter[Followed, _Drafts]):
    """A proposer that asks an assistant."""

    def __init__(
        self,
        assistant: HeadForward,
        hidden: HiddenRows,
        sampler: QueuedSampler,
        slots: Slots,
        limits: DraftLimits,
    ) -> None:
        """`hidden`: filled by each pass of the served model."""
        super().__init__(sampler, slots, limits)
        self._assistant = assistant
        self._hidden = hidden

    def take(self, plan: Plan) -> None:
        """Records a plan that was applied to the slots."""
        super().take(plan)
        for number in plan.released:
            self._hidden.forget(number)

    def _leave(self, number: int) -> None:
        super()._leave(number)
        self._hidden.leave(number)

    def reset(self) -> None:
        """Forgets all sequences."""
        super().reset()
        self._hidden.clear()

    def _state(self, work: SlotWork, slot: Slot) -> Followed:
        state = self._followed.get(work.slot)
        if state is None:
            state = Followed(without_logprobs(slot.sampling), computed=0, noted=0)
            self._followed[work.slot] = state
        return state

    def _ask(self, work: SlotWork, slot: Slot, state: Followed, spare: int) -> _Drafts:
        """Returns the row in front of the newest token, where drafts are asked for."""
        end, before = work.start + work.count, work.start - 1
        most = 0
        if work.draft and work.count == 1 and end == len(slot.token_ids) == slot.known:
            most = min(work.draft, self._room(end))
        if before < 0 or not self._hidden.has(work.slot, slot.token_ids, before):
            most = 0
        stop = before + 1 if most else before
        return _Drafts(work.slot, slot, state, before, stop, most, end, unread=before)

    def _note(self, asked: _Drafts) -> None:
        """The one hidden state is read once more if the launch is tried again."""
        self._hidden.forget(asked.number, before=asked.unread)

    def _draft(self, asked: list[_Drafts]) -> None:
        """Computes a pass for the first drafts of all, then one for each further draft."""
        hidden = torch.cat([self._before(own) for own in asked])
        drafting = asked
        while drafting:
            rows = np.arange(len(drafting))
            logits, onward = self._assistant.step(self._batch(drafting), hidden, rows, rows)
            going_on = self._sampled(drafting, logits)
            left = {own.number for own in going_on}
            hidden = onward[[at for at, own in enumerate(drafting) if own.number in left]]
            drafting = going_on

    def _before(self, own: _Drafts) -> torch.Tensor:
        return self._hidden.read(own.number, own.slot.token_ids, own.start, own.stop)

    def _batch(self, drafting: list[_Drafts]) -> Batch:
        """Returns a row of each slot, which sees what stands before its newest token."""
        size, bounds = self._slots.bounds.block_size, self._slots.bounds
        numbers = [own.number for own in drafting]
        widths = [-(-own.stop // size) for own in drafting]
        first, *others = (
            self._slots.tables.of(numbers, widths, group) for group in range(len(bounds.groups))
        )
        return Batch(
            tokens=np.array([own.newest for own in drafting], dtype=np.int64),
            tables=first,
            starts=np.array([own.start for own in drafting], dtype=np.int64),
            counts=np.ones(len(drafting), dtype=np.int64),
            more_tables=tuple(others),
            slots=numbers,
        )
