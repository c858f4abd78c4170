"""The reference backend's KV cache of a model that sees pictures in some layers alone.

Rows of pictures stand among tokens: at their places the cache has keys and values of the layers
that see pictures, and at tokens' places those of the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from penstock_kernels.reference.tiling import padded_rows
from penstock_worker.attention.encoded import DividedStep, Division
from penstock_worker.attention.interface import BatchLayout
from penstock_worker.attention.reference import ReferenceAttention, ReferenceStep
from penstock_worker.attention.reference_encoder import (
    EncoderDecoderCache,
    ReferenceEncoded,
    slots_of,
)

Spans = Sequence[tuple[int, int]]
"""First and end position of each picture, ascending."""


class PicturesApartCache(EncoderDecoderCache):
    """A ReferenceAttention whose sequences have pictures anywhere."""

    def __init__(self, backend: ReferenceAttention) -> None:
        super().__init__(backend, 0)

    def divide_at(
        self, layout: BatchLayout, stored: np.ndarray, spans: Sequence[Spans] | None
    ) -> DividedStep:
        """What `divide` gives. spans: of each sequence; None: none has pictures."""
        backend, size = self._backend, self._backend.shape.block_size
        sequences = [
            _Sequence(slots_of(table, size, start + count), start, spans[at] if spans else ())
            for at, (table, start, count) in enumerate(
                zip(
                    layout.block_tables, layout.starts.tolist(), layout.counts.tolist(), strict=True
                )
            )
        ]
        having = [each for each in sequences if len(each.decoded)]
        counts = np.array([len(each.decoded) for each in sequences], np.int64)
        own = self._plan([each.token_slots for each in having], counts[counts > 0])
        shown = [part for each in having for part in each.shown(backend.zero_slot)]
        seen = np.array([len(table) for table, _, _ in shown], np.int64)
        of_each = np.array([count for _, count, _ in shown], np.int64)
        crossed = self._plan(
            [table for table, _, _ in shown], of_each, np.repeat(seen - 1, of_each)
        )
        firsts = np.cumsum(layout.counts) - layout.counts
        pairs = list(zip(firsts.tolist(), sequences, strict=True))
        division = Division(
            np.concatenate([first + each.decoded for first, each in pairs]),
            counts,
            np.concatenate([each.positions for each in sequences]),
        )
        places = torch.from_numpy(np.concatenate([each.new_slots for each in sequences]))
        written = places[torch.from_numpy(division.decoded)]
        sharing = backend.shape.num_heads // backend.shape.num_kv_heads
        return DividedStep(
            division,
            ReferenceStep(backend, [(written, {sharing: own})]),
            ReferenceEncoded(
                backend,
                places[torch.from_numpy(stored)],
                crossed,
                _seeing([(count, sees) for _, count, sees in shown]),
            ),
        )


class _Sequence:
    """A sequence's rows of a step, and where its tokens and pictures are."""

    def __init__(self, slots: np.ndarray, start: int, spans: Spans) -> None:
        """slots: of all its positions up to the step's end."""
        end = len(slots)
        apart = np.zeros(end, dtype=bool)
        for first, stop in spans:
            apart[first:stop] = True
        tokens = (~apart).nonzero()[0]
        new = tokens[tokens >= start]
        self._slots, self._spans = slots, [span for span in spans if span[0] < end]
        self._new = new
        self.new_slots = slots[start:]
        self.decoded = new - start
        """Which rows of the step are tokens."""
        self.positions = np.arange(len(tokens) - len(new), len(tokens))
        """Their positions among tokens."""
        self.token_slots = slots[tokens]
        """Slots of all tokens."""

    def shown(self, nothing: int) -> list[tuple[np.ndarray, int, bool]]:
        """Slots that new tokens see, how many in a row see them, and whether these are of pictures;
        `nothing` is a slot of zeros, for those before all pictures. A token sees the last picture
        before it, and those that stand directly before that one, with but a token between each."""
        found: list[tuple[np.ndarray, int, bool]] = []
        ends = [end for _, end in self._spans]
        numbers = np.searchsorted(np.array(ends, np.int64), self._new, side="right")
        for number in np.unique(numbers).tolist():
            count = int((numbers == number).sum())
            if not number:
                found.append((np.full(count, nothing), count, False))
                continue
            slots = self._group(number - 1)
            # A kernel's queries are a sequence's last tokens, so it has as many at least.
            found += [(slots, part, True) for part in _parts(count, len(slots))]
        return found

    def _group(self, last: int) -> np.ndarray:
        first = last
        while first and self._spans[first][0] - self._spans[first - 1][1] == 1:
            first -= 1
        return np.concatenate(
            [self._slots[low:high] for low, high in self._spans[first : last + 1]]
        )


def _parts(count: int, most: int) -> list[int]:
    whole, rest = divmod(count, most)
    return [most] * whole + ([rest] if rest else [])


def _seeing(shown: list[tuple[int, bool]]) -> torch.Tensor | None:
    """EncodedAttention.seeing. shown: how many rows, and whether they see a picture."""
    if all(sees for _, sees in shown):
        return None
    flags = np.repeat([sees for _, sees in shown], [count for count, _ in shown])
    padding = (0, padded_rows(len(flags)) - len(flags))
    return torch.from_numpy(np.pad(flags.astype(np.float32), padding))[:, None]
