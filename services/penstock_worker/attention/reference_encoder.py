"""The reference backend's attention to an encoder's output."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from penstock_kernels import reference as ops
from penstock_worker.attention.encoded import DividedStep, Division
from penstock_worker.attention.interface import (
    BatchLayout,
)
from penstock_worker.attention.reference import ReferenceAttention, ReferenceStep


class ReferenceEncoded:
    """EncodedAttention of one step."""

    def __init__(
        self,
        backend: ReferenceAttention,
        slots: Tensor,
        plan: ops.AttentionPlan,
        seeing: Tensor | None = None,
    ) -> None:
        """slots: [n] int64, where the step's rows of the encoder are stored."""
        self.seeing = seeing
        self._backend = backend
        self._slots = slots
        self._plan = plan

    def store(self, layer: int, key: Tensor, value: Tensor) -> None:
        count = len(self._slots)
        keys, values = self._backend.of_layer(layer)
        ops.write_kv(key[:count], value[:count], keys, values, self._slots)

    def attend(self, layer: int, query: Tensor) -> Tensor:
        keys, values = self._backend.of_layer(layer)
        return ops.paged_attention(query, keys, values, self._plan, query.shape[-1] ** -0.5)


class EncoderDecoderCache:
    """A ReferenceAttention whose sequences begin with an encoder's rows."""

    def __init__(self, backend: ReferenceAttention, encoder_rows: int) -> None:
        if len(backend.shape.groups) != 1:
            raise ValueError("attention to an encoder's output needs a single KV group")
        self._backend = backend
        self._encoder_rows = encoder_rows

    def kv_blocks(self) -> list[np.ndarray]:
        return self._backend.kv_blocks()

    def divide(self, layout: BatchLayout, stored: np.ndarray) -> DividedStep:
        """Prepares one step (see DividingCache). A decoder begins wherever in a block, so the
        kernel gets tables of single slots, in which its tokens, or the encoder's, are a sequence of
        their own."""
        rows, size = self._encoder_rows, self._backend.shape.block_size
        ends = layout.starts + layout.counts
        slots = [
            slots_of(table, size, int(end))
            for table, end in zip(layout.block_tables, ends, strict=True)
        ]
        division = Division.of(layout.starts, layout.counts, rows)
        with_tokens = division.counts.nonzero()[0]
        counts = division.counts[with_tokens]
        own = self._plan([slots[at][rows:] for at in with_tokens], counts)
        last = np.full(int(counts.sum()), rows - 1)
        crossed = self._plan([slots[at][:rows] for at in with_tokens], counts, last)
        of_rows = [each[start:] for each, start in zip(slots, layout.starts.tolist(), strict=True)]
        places = torch.from_numpy(np.concatenate(of_rows))
        written = places[torch.from_numpy(division.decoded)]
        shape = self._backend.shape
        sharing = shape.num_heads // shape.num_kv_heads
        return DividedStep(
            division,
            ReferenceStep(self._backend, [(written, {sharing: own})]),
            ReferenceEncoded(self._backend, places[torch.from_numpy(stored)], crossed),
        )

    def _plan(
        self, tables: list[np.ndarray], counts: np.ndarray, last_seen: np.ndarray | None = None
    ) -> ops.AttentionPlan:
        """tables: of each sequence the slots that its queries may see."""
        if not tables:
            return ops.AttentionPlan([])
        shape = self._backend.shape
        return ops.plan_attention(
            tables,
            counts,
            np.array([len(table) for table in tables]),
            block_size=1,
            zero_slot=self._backend.zero_slot,
            group=shape.num_heads // shape.num_kv_heads,
            last_seen=last_seen,
        )


def slots_of(table: np.ndarray, block_size: int, tokens: int) -> np.ndarray:
    """Slots of a sequence's first tokens, [tokens] int64."""
    position = np.arange(tokens)
    return table[position // block_size] * block_size + position % block_size
