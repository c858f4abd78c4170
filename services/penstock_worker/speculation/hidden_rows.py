"""Hidden states that a layer of a head hasn't read yet: the served model's, or those of the layer
before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock_worker.forward.interface import Batch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class _Held:
    """A slot's hidden states from position `first` on, with the tokens that they were computed
    from."""

    first: int
    tokens: np.ndarray
    rows: Tensor


class HiddenRows:
    """The hidden states of each slot's consecutive positions, up to the last one that was computed.
    They are read soon, so there are few: those of one step, and some more of each slot. Threads may
    call it at once, for different slots."""

    def __init__(self, like: Tensor, ahead: int = 0) -> None:
        """`like`: a tensor of no rows, [0, hidden], of the hidden states' dtype. `ahead`: how many
        tokens the last token that a row was computed from is after the row's position."""
        self._like = like
        self._ahead = ahead
        self._held: dict[int, _Held] = {}
        self._left: set[int] = set()
        """Slots of which nothing is noted."""

    def wants(self, batch: Batch) -> bool:
        """Whether anything of a pass is noted."""
        return not self._left.issuperset(batch.slots)

    def note(self, batch: Batch, hidden: Tensor) -> None:
        """Records a pass over these rows, [rows, hidden], some of which may be drafts'. It replaces
        what was held of the same positions, and of later ones."""
        ends = np.cumsum(batch.counts)
        for number, start, count, end in zip(
            batch.slots, batch.starts.tolist(), batch.counts.tolist(), ends.tolist(), strict=True
        ):
            if number in self._left:
                continue
            own = slice(end - count, end)
            self._append(number, start, batch.tokens[own], hidden[own])

    def _append(self, number: int, start: int, tokens: np.ndarray, rows: Tensor) -> None:
        held = self._held.get(number)
        if held is None or not held.first <= start <= held.first + len(held.tokens):
            self._held[number] = _Held(start, tokens, rows.clone())
            return
        kept = start - held.first
        held.tokens = np.concatenate((held.tokens[:kept], tokens))
        held.rows = torch.cat((held.rows[:kept], rows))

    def read(
        self,
        number: int,
        token_ids: Sequence[int],
        start: int,
        stop: int,
        drafts: Sequence[int] = (),
    ) -> Tensor:
        """Returns those of positions [start, stop) of a slot with these tokens, and these drafts
        after them, [stop - start, hidden]; zeros for those that aren't held."""
        found = self._like.new_zeros(stop - start, self._like.shape[1])
        held = self._held.get(number)
        if held is not None:
            low = max(start, held.first)
            high = min(stop, held.first + self._right(held, token_ids, drafts))
            if low < high:
                found[low - start : high - start] = held.rows[low - held.first : high - held.first]
        return found

    def has(self, number: int, token_ids: Sequence[int], position: int) -> bool:
        """Whether that of a position is held, of a slot with these tokens."""
        held = self._held.get(number)
        if held is None:
            return False
        return held.first <= position < held.first + self._right(held, token_ids, ())

    def leave(self, number: int) -> None:
        """Forgets all of the slot's, and notes nothing more of it until all is forgotten again."""
        self._held.pop(number, None)
        self._left.add(number)

    def forget(self, number: int, before: int | None = None) -> None:
        """Forgets those of positions below `before`; None: all of the slot's."""
        held = self._held.get(number)
        if before is None:
            self._left.discard(number)
        if held is None or before is None:
            self._held.pop(number, None)
        elif before > held.first:
            gone = min(before - held.first, len(held.tokens))
            self._held[number] = _Held(
                held.first + gone, held.tokens[gone:], held.rows[gone:].clone()
            )

    def clear(self) -> None:
        self._held.clear()
        self._left.clear()

    @property
    def count(self) -> int:
        """Rows that are held."""
        return sum(len(held.tokens) for held in list(self._held.values()))

    def _right(self, held: _Held, token_ids: Sequence[int], drafts: Sequence[int]) -> int:
        """Returns how many are of these tokens, and not of other drafts, which were wrong. A token
        that only the device knew then, an id below 0, was the slot's own."""
        first, count = held.first + self._ahead, len(held.tokens)
        known = [*token_ids[first : first + count], *drafts][:count]
        own = np.array(known, dtype=np.int64)
        theirs = held.tokens[: len(own)]
        wrong = np.flatnonzero((theirs != own) & (theirs >= 0))
        return int(wrong[0]) if len(wrong) else len(own)
