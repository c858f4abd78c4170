"""Drafts by a head, which reads the served model's hidden states and is asked what comes next.

Its row i is made of the hidden state at position i and of the token after it. So it is one row
behind the model: when the newest token is known, all its rows are, and the last of them says what
follows. Further drafts are made of its own result in place of a hidden state (Li et al., "EAGLE",
2024), and their rows are computed again when the model's are there.

Choices are checked like any other drafts. A hidden state that isn't there any more, as its block
was found in the prefix cache and its row wasn't, is replaced by zeros: that costs at most a draft.
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
from penstock_worker.forward.heads import HeadForward
from penstock_worker.forward.interface import Batch
from penstock_worker.sampler.queued import QueuedSampler
from penstock_worker.speculation.draft_rows import DraftRows
from penstock_worker.speculation.draft_sampling import (
    DraftLimits,
    DraftSampler,
    without_logprobs,
)
from penstock_worker.speculation.hidden_rows import HiddenRows

PENDING = 32
"""Rows of a sequence that may wait until there are more of them, or drafts are asked for."""


@dataclass
class _Followed:
    """How far the head has come with the sequence in a slot."""

    sampling: TokenSampling  # Without log-probabilities.
    computed: int  # Rows that it has computed, from the first one on.
    noted: int  # Tokens whose rows have been told to DraftRows.
    failures: int = 0  # Passes in a row that failed.


@dataclass
class _Rows:
    """What one step computes for a slot: rows [start, stop), and then so many drafts."""

    number: int  # The slot's.
    slot: Slot
    state: _Followed
    start: int
    stop: int
    most: int
    known: int  # Rows that can be computed, from the first one on.
    end: int  # Of what the served model computes.
    drafts: list[int] = field(default_factory=list)

    @property
    def sampling(self) -> TokenSampling:
        return self.state.sampling

    def fail(self) -> None:
        """Notes a pass that failed: none of its rows counts as computed."""
        self.stop = self.start
        self.drafts.clear()
        self.state.failures += 1

    @property
    def unread(self) -> int:
        """The first position whose hidden state may still be read. The last one that was is read
        once more if the launch is tried again. Where passes fail again and again, only a few are
        kept: those that are missing cost drafts, and all of them would take more memory with each
        token."""
        first = self.state.computed - 1
        return first if self.state.failures < 2 else max(first, self.known - PENDING)


class DraftHead:
    """A proposer. May be called from several threads at once, with works that have no slot in
    common, where the head's forward pass may."""

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
        self._head = head
        self._hidden = hidden
        self._sampler = DraftSampler(sampler, limits)
        self._slots = slots
        self._rows = rows
        self._limits = limits
        self._followed: dict[int, _Followed] = {}

    def take(self, plan: Plan) -> None:
        """Takes note of a plan that was applied to the slots."""
        self._rows.copied(plan.copies)
        for work in plan.work:
            self._rows.given(work.new_blocks)
        for number in plan.released:
            self._followed.pop(number, None)
            self._hidden.forget(number)

    def fetched(self, message: FetchKV) -> None:
        """Follows copies of blocks. Fetched blocks have none of the head's rows, which are computed
        where they are wanted."""
        self._rows.copied(message.copies)
        self._rows.given(message.blocks)

    def first(self, number: int) -> int | None:
        """Returns None: no draft is known before it is computed."""
        return None

    def undo(self, scheduled: Sequence[SlotWork]) -> None:
        """Does nothing: rows that were computed are the slot's, and are right."""

    def reset(self) -> None:
        """Forgets all sequences."""
        self._followed.clear()
        self._hidden.clear()
        self._rows.clear()

    def proposed(self, number: int) -> int:
        """Returns how many tokens can be proposed after the slot's."""
        return min(self._limits.drafts, self._room(len(self._slots[number].token_ids)))

    def propose(self, scheduled: Sequence[SlotWork]) -> list[list[int]]:
        """Computes the rows that have become known, where they are many or drafts are asked for.
        Returns drafts after each work's tokens, at most as many as it allows."""
        spare, asked = self._limits.catch_up, []
        for work, slot in zip(scheduled, self._slots.of(scheduled), strict=True):
            rows = self._asked(work, slot, spare)
            spare -= rows.stop - rows.start
            asked.append(rows)
        computing = [rows for rows in asked if rows.stop > rows.start]
        try:
            if computing:
                with torch.inference_mode():
                    self._draft(computing)
                for rows in computing:
                    rows.state.failures = 0
        except BaseException:
            for rows in computing:
                rows.fail()
            raise
        finally:
            for rows in asked:
                self._note(rows)
        return [rows.drafts for rows in asked]

    def _asked(self, work: SlotWork, slot: Slot, spare: int) -> _Rows:
        """Returns what is to be computed for a work. `spare`: rows that may be."""
        state = self._state(work, slot)
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
        return _Rows(work.slot, slot, state, max(start, 0), max(stop, start, 0), most, known, end)

    def _note(self, rows: _Rows) -> None:
        state = rows.state
        state.computed = max(state.computed, rows.stop)
        self._rows.note(rows.slot.blocks, min(rows.start, state.noted), rows.end, state.computed)
        state.noted = rows.end
        self._hidden.forget(rows.number, before=rows.unread)

    def _state(self, work: SlotWork, slot: Slot) -> _Followed:
        state = self._followed.get(work.slot)
        if state is None:
            found = self._rows.leading(slot.blocks, work.start)
            state = _Followed(without_logprobs(slot.sampling), found, noted=work.start)
            self._followed[work.slot] = state
        return state

    def _room(self, end: int) -> int:
        return max(0, self._limits.positions - end)

    def _draft(self, asked: list[_Rows]) -> None:
        """Computes the rows that aren't computed yet in one pass, which gives the first drafts,
        then one pass for each further draft."""
        tokens = [
            token for rows in asked for token in rows.slot.token_ids[rows.start + 1 : rows.stop + 1]
        ]
        starts = np.array([rows.start for rows in asked], dtype=np.int64)
        counts = np.array([rows.stop - rows.start for rows in asked], dtype=np.int64)
        drafting = [rows for rows in asked if rows.most > 0]
        last = (np.cumsum(counts) - 1)[[rows.most > 0 for rows in asked]]
        batch = self._batch(asked, tokens, starts, counts)
        logits, hidden = self._head.step(batch, self._read(asked), last)
        while drafting:
            hidden_of = {rows.number: row for rows, row in zip(drafting, hidden, strict=True)}
            drafting = self._sampler.sample(drafting, logits)
            if not drafting:
                break
            newest = [rows.drafts[-1] for rows in drafting]
            places = np.array(
                [rows.stop + len(rows.drafts) - 1 for rows in drafting], dtype=np.int64
            )
            ones = np.ones(len(drafting), dtype=np.int64)
            batch = self._batch(drafting, newest, places, ones)
            own = torch.stack([hidden_of[rows.number] for rows in drafting])
            logits, hidden = self._head.step(batch, own, np.arange(len(drafting)))

    def _read(self, asked: list[_Rows]) -> Tensor:
        """Returns the hidden states of all rows."""
        return torch.cat(
            [
                self._hidden.read(rows.number, rows.slot.token_ids, rows.start, rows.stop)
                for rows in asked
            ]
        )

    def _batch(
        self, asked: list[_Rows], tokens: list[int], starts: np.ndarray, counts: np.ndarray
    ) -> Batch:
        widths = -(-(starts + counts) // self._slots.bounds.block_size)
        numbers = [rows.number for rows in asked]
        tables = self._slots.tables.of(numbers, widths)
        return Batch(np.array(tokens, dtype=np.int64), tables, starts, counts, slots=numbers)
