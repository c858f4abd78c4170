"""Drafts by a head, which reads the served model's hidden states and is asked what comes next.

Its row i is made of the hidden state at position i and of the token after it. So it lags the model
by one row: when the newest token is known, all its rows are, and the last of them predicts the next
token. Further drafts are made of its own result in place of a hidden state (Li et al., "EAGLE",
2024), and their rows are computed again when the model's are there.

A head may have several layers (DeepSeek-AI, "DeepSeek-V3 technical report", 2024, section 2.2). Row
i of a further layer is made of row i of the layer before it, and of the token after that one's. So
each lags one more row, and predicts one more token: in the rows that lag, drafts take the place of
tokens. Drafts after those of all layers are made by the last of them. Layers that aren't chained
(see HeadConfig) all read the model's hidden state at i, and are alike otherwise.

A hidden state that isn't there any more, as its block was found in the prefix cache and its row
wasn't, is replaced by zeros: that costs at most a draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from penstock.protocol.common import TokenSampling
from penstock.protocol.to_worker import Plan, SlotWork
from penstock_worker.batch.slots import Slot, Slots
from penstock_worker.forward.heads import HeadForward
from penstock_worker.sampler.interface import QueuedSampler
from penstock_worker.speculation.drafter import Asked, DraftLimits, DraftRows, Followed, PassDrafter
from penstock_worker.speculation.hidden_rows import HiddenRows

PENDING = 32
"""Rows of a sequence that may wait until there are more of them, or drafts are asked for."""


@dataclass
class _Followed(Followed):
    """How far the head has come with the sequence in a slot."""

    layers: list[int]
    """Rows that each layer has computed, from the first one on, of the sequence's own tokens."""
    failures: int = 0  # Passes in a row that failed.


@dataclass
class _Rows(Asked[_Followed]):
    """What one step computes for a slot. start, stop: of the first layer."""

    known: int  # Rows that the first layer can compute, from the first one on.
    layers: list[int] = field(default_factory=list, kw_only=True)
    """What _Followed.layers is going to be, of the layers whose turn it has been."""
    hidden: Tensor | None = field(default=None, kw_only=True)
    """The last layer's result of its last row, [hidden], of which the next draft's row is made."""

    def own(self, layer: int) -> int:
        """Rows of a layer that are made of the sequence's own tokens."""
        return max(0, min(self.known, self.slot.known - 1 - layer))

    def tokens(self, layer: int, start: int, stop: int) -> list[int]:
        """The tokens of a layer's rows, some of the last of which are drafts."""
        ahead = layer + 1
        own = self.slot.token_ids[start + ahead : stop + ahead]
        return [*own, *self.drafts][: stop - start]

    @property
    def reached(self) -> int:
        return min(self.state.layers)

    def succeed(self) -> None:
        self.state.layers = [*map(max, self.state.layers, self.layers)]
        self.state.failures = 0

    def fail(self) -> None:
        super().fail()
        self.state.failures += 1

    def unread(self, layer: int) -> int:
        """The first position whose hidden state a layer may still read. The last one that was is
        read once more if the launch is tried again. Where passes fail again and again, only a few
        are kept: those that are missing cost drafts, and all of them would take more memory with
        each token."""
        first = self.state.layers[layer] - 1
        return first if self.state.failures < 2 else max(first, self.known - PENDING)


@dataclass(frozen=True)
class _Span:
    """The rows of a slot that one layer computes in a step."""

    rows: _Rows
    start: int
    stop: int
    drafts: bool  # Whether the last one says a draft.


class DraftHead(PassDrafter[_Followed, _Rows]):
    """A proposer that asks a head."""

    def __init__(
        self,
        heads: Sequence[HeadForward],
        hidden: HiddenRows,
        sampler: QueuedSampler,
        slots: Slots,
        rows: DraftRows,
        limits: DraftLimits,
        *,
        chained: bool = True,
    ) -> None:
        """`heads`: the head's layers. `hidden`: filled by each pass of the served model. `chained`:
        see HeadConfig."""
        super().__init__(sampler, slots, rows, limits)
        self._heads = heads
        self._chained = chained
        further = heads[1:] if chained else ()
        rest = [HiddenRows(each.like, at + 1) for at, each in enumerate(further)]
        self._hidden = [hidden, *rest]
        """What each layer reads, or all of them."""

    def take(self, plan: Plan) -> None:
        """Records a plan that was applied to the slots."""
        super().take(plan)
        for number in plan.released:
            for each in self._hidden:
                each.forget(number)

    def _leave(self, number: int) -> None:
        super()._leave(number)
        for each in self._hidden:
            each.leave(number)

    def reset(self) -> None:
        """Forgets all sequences."""
        super().reset()
        for each in self._hidden:
            each.clear()

    def _lacks(self, work: SlotWork, slot: Slot) -> bool:
        """Rows of tokens that were computed while the head rested would be made of zeros: where
        these are most, they would cost time, and drafts would mostly be wrong."""
        return 2 * self._rows.lost(slot.blocks, work.start) > work.start

    def _begin(self, sampling: TokenSampling, computed: int, noted: int) -> _Followed:
        return _Followed(sampling, computed, noted, [computed] * len(self._heads))

    def _ask(self, work: SlotWork, slot: Slot, state: _Followed, spare: int) -> _Rows:
        """Returns the rows that have become known, where they are many or drafts are asked for."""
        # A row is made of the token after it, too, which a step in flight may be sampling.
        known = min(work.start, self._limits.positions, slot.known - 1)
        end = work.start + work.count
        most = 0
        if work.draft and work.count == 1 and end == len(slot.token_ids) and known == work.start:
            most = min(work.draft, self._room(end))
        # Of rows that are all computed, the last one is again, for its logits.
        start = min(state.layers[0], known - 1 if most else known)
        waits = not most and known - start < PENDING
        stop = start if waits else min(known, start + spare)
        most = most if stop == known > 0 else 0
        return _Rows(work.slot, slot, state, max(start, 0), max(stop, start, 0), most, end, known)

    def _note(self, asked: _Rows) -> None:
        super()._note(asked)
        unread = [asked.unread(layer) for layer in range(len(self._heads))]
        if not self._chained:
            unread = [min(unread)]
        for hidden, first in zip(self._hidden, unread, strict=True):
            hidden.forget(asked.number, before=first)

    def _draft(self, asked: list[_Rows]) -> None:
        """Computes each layer's rows in one pass, which gives it a draft of each slot, then one
        pass of the last layer for each further draft."""
        drafting = [own for own in asked if own.most > 0]
        for layer in range(len(self._heads)):
            spans = self._spans(layer, asked, {own.number for own in drafting})
            drafting = self._pass(layer, spans) if spans else []
        last = len(self._heads) - 1
        while drafting:
            places = [own.stop + len(own.drafts) - 1 - last for own in drafting]
            drafting = self._further_pass(drafting, places)

    def _spans(self, layer: int, asked: list[_Rows], drafting: set[int]) -> list[_Span]:
        """Returns what a layer computes: all it can, where they are many or it drafts."""
        spare, found = self._limits.catch_up, []
        for own in asked:
            drafts, start = own.number in drafting, own.state.layers[layer]
            if not layer:
                span = _Span(own, own.start, own.stop, drafts)
            elif drafts:
                span = _Span(own, min(start, own.stop - 1), own.stop, drafts)
            else:
                # What it reads is there as far as the layer before it has come.
                stop = min(own.layers[layer - 1], own.own(layer))
                span = _Span(own, start, stop if stop - start >= PENDING else start, drafts)
            computed = max(span.stop - span.start, 0)
            if layer and computed > spare:
                span, computed = _Span(own, start, start + spare, drafts=False), spare
            own.layers.append(max(start, min(span.stop, own.own(layer))))
            spare -= computed
            if computed:
                found.append(span)
        return found

    def _pass(self, layer: int, spans: list[_Span]) -> list[_Rows]:
        """Computes these rows, and returns the slots that are to get another draft."""
        each = [span.rows for span in spans]
        starts = np.array([span.start for span in spans], dtype=np.int64)
        counts = np.array([span.stop - span.start for span in spans], dtype=np.int64)
        tokens, read, hidden = [], [], self._hidden[layer if self._chained else 0]
        for own, start, stop in ((span.rows, span.start, span.stop) for span in spans):
            tokens += own.tokens(layer, start, stop)
            read.append(hidden.read(own.number, own.slot.token_ids, start, stop, own.drafts))
        batch = self._batch(each, tokens, starts, counts)
        drafts = [span.drafts for span in spans]
        rows = (np.cumsum(counts) - 1)[drafts]
        goes_on = layer + 1 < len(self._heads)
        onward = np.arange(len(tokens)) if goes_on and self._chained else rows
        logits, results = self._heads[layer].step(batch, torch.cat(read), rows, onward)
        drafting = [own for own, drafted in zip(each, drafts, strict=True) if drafted]
        if not goes_on:
            self._hold(drafting, results)
        elif self._chained:
            self._hidden[layer + 1].note(batch, results)
        return self._sampled(drafting, logits) if drafting else []

    def _further_pass(self, drafting: list[_Rows], places: list[int]) -> list[_Rows]:
        """Computes a row of the newest draft of each. Does what `_pass` does."""
        newest = [own.drafts[-1] for own in drafting]
        ones = np.ones(len(drafting), dtype=np.int64)
        batch = self._batch(drafting, newest, np.array(places, dtype=np.int64), ones)
        hidden = torch.stack([own.hidden for own in drafting if own.hidden is not None])
        rows = np.arange(len(drafting))
        logits, results = self._heads[-1].step(batch, hidden, rows, rows)
        self._hold(drafting, results)
        return self._sampled(drafting, logits)

    def _hold(self, drafting: list[_Rows], results: Tensor) -> None:
        for own, result in zip(drafting, results, strict=True):
            own.hidden = result
