"""The shapes to which steps are padded that have prompts' chunks, or drafted tokens, among decodes.

A graph's shape is a number of rows. What such a step has of each kind doesn't matter: its tiles of
queries are in lists that have room for any division of the rows into sequences, and those that
aren't needed end at once. Only where partial results of attention don't fit one launch, a longer
context has graphs of its own, as decodes have.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

from penstock.model.config import ModelConfig
from penstock.protocol.to_worker import Setup
from penstock_worker.forward.interface import Batch
from penstock_worker.forward.mixed_inputs import MixedInputs, is_text
from penstock_worker.forward.padded_inputs import InputSizes

MIXED_ROWS = (16, 32, 64, 128, 256, 384, 512)
"""Up to 256 rows a step mostly reads weights, and padding costs little; beyond, it multiplies. More
than 512 keep a device busy for longer than the host takes to launch them one by one."""
MIXED_GRAPHS = 32
"""Graphs that are captured at most, beside those of decodes. Where shapes are more, those of the
shortest contexts share the graphs of longer ones."""


@dataclass(frozen=True)
class MixedBucket:
    """The shape to which such a step is padded."""

    rows: int
    sequences: int
    """Most sequences of the step."""
    context: int
    """Tokens that the longest sequence may have."""
    adapted: bool = False
    """Whether rows may have adapters."""

    def inputs(self, sizes: InputSizes) -> MixedInputs:
        return MixedInputs(self.rows, self.sequences, self.context, sizes, adapted=self.adapted)


@dataclass(frozen=True)
class MixedBuckets:
    """The buckets for steps of up to `sequences` sequences."""

    rows: tuple[int, ...]
    """Rows of each bucket, ascending; none: such steps have no bucket."""
    sequences: int
    contexts: tuple[int, ...]
    """Contexts of decodes' buckets, ascending."""
    kinds: tuple[bool, ...]
    """Whether rows may have adapters."""

    def of(self, batch: Batch) -> MixedBucket | None:
        """Returns the batch's bucket, if it has one."""
        rows, longest = len(batch.tokens), int((batch.starts + batch.counts).max())
        if not self.rows or rows > self.rows[-1] or len(batch.counts) > self.sequences:
            return None
        if longest > self.contexts[-1] or not is_text(batch):
            return None
        context = self._kept[bisect_left(self._kept, longest)]
        adapted = batch.adapters is not None
        return self._bucket(self.rows[bisect_left(self.rows, rows)], context, adapted=adapted)

    @property
    def all(self) -> list[MixedBucket]:
        return [
            self._bucket(rows, context, adapted=adapted)
            for rows in self.rows
            for context in self._kept
            for adapted in self.kinds
        ]

    def _bucket(self, rows: int, context: int, *, adapted: bool) -> MixedBucket:
        return MixedBucket(rows, min(rows, self.sequences), context, adapted)

    @cached_property
    def _kept(self) -> tuple[int, ...]:
        """Contexts."""
        most = MIXED_GRAPHS // max(1, len(self.rows) * len(self.kinds))
        return self.contexts[-max(1, most) :]


def mixed_rows(setup: Setup, config: ModelConfig) -> tuple[int, ...]:
    """Rows of a worker's buckets, ascending. None for a model with an encoder, whose rows don't go
    through the layers."""
    if config.encoder_rows:
        return ()
    most = min(MIXED_ROWS[-1], setup.max_num_batched_tokens)
    return (*(rows for rows in MIXED_ROWS if rows < most), most)
