"""What the reference backend keeps for compressed attention (see CompressedSpec), and how a step
reads and writes it.

What a token contributes to entries lies in blocks next to its key, and an entry with its key in the
index in that block of the first group which has its last token (see penstock.model.compressed_kv).
So blocks hold all that is made of their tokens: they can be found by a prefix, swapped, stored and
sent as any others. What a token gives is read again when the entry's last token is computed, in the
same step or in a later one: an entry is made of stored numbers in any case, in one order, so that
its bits don't depend on how tokens were divided into chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock.model.attention_spec import CompressedSpec, IndexSpec
from penstock.model.compressed_kv import BlockParts, block_parts, entries_of_block
from penstock_kernels import reference as ops
from penstock_worker.attention.interface import (
    BatchLayout,
    CacheShape,
    Entries,
    EntryParts,
    ScoreRule,
)


@dataclass(frozen=True)
class _Layer:
    """A layer's rows. Those of the block after the cache's last one stay zero."""

    group: int
    keys: ops.RowsOfBlocks
    given: ops.RowsOfBlocks | None
    """What each token contributes to entries: values, then logits; then both for the index."""
    entries: ops.RowsOfBlocks | None
    index: ops.RowsOfBlocks | None
    """Keys of entries."""


class CompressedCache:
    """The keys and entries of all layers."""

    def __init__(self, shape: CacheShape, num_blocks: int) -> None:
        self.shape = shape
        self._blocks = num_blocks
        parts = _parts(shape)
        # Not filled: places are written before they are read.
        self._memory = torch.empty(num_blocks + 1, parts.size, dtype=shape.dtype)
        self._memory[num_blocks] = 0
        self.layers = [
            self._layer(number, parts.tokens[number].start, parts.entries[number].start)
            for number in range(len(shape.compressed))
        ]

    def _layer(self, number: int, tokens: int, entries: int) -> _Layer:
        shape, head = self.shape, self.shape.head_dim
        spec, (group, _) = shape.compressed[number], shape.place(number)
        keys = self._rows(tokens, shape.block_size, head)
        if not spec.rate:
            return _Layer(group, keys, None, None, None)
        of_index = 0 if spec.index is None else spec.index.size
        after_keys = tokens + shape.block_size * head
        count = entries_of_block(spec.rate, shape.block_size)
        return _Layer(
            group,
            keys,
            self._rows(after_keys, shape.block_size, 2 * spec.series * (head + of_index)),
            self._rows(entries, count, head),
            None if not of_index else self._rows(entries + count * head, count, of_index),
        )

    def _rows(self, first: int, count: int, size: int) -> ops.RowsOfBlocks:
        return ops.RowsOfBlocks(self._memory[:, first : first + count * size], size)

    @staticmethod
    def block_bytes(shape: CacheShape) -> int:
        """Returns the size of a block."""
        return _parts(shape).size * shape.dtype.itemsize

    def kv_blocks(self) -> list[np.ndarray]:
        return [self._memory[: self._blocks].view(torch.uint8).numpy()]

    def plan(
        self, layout: BatchLayout, groups: Sequence[tuple[Tensor, ops.AttentionPlan]]
    ) -> CompressedStep:
        """groups: of each group, the slots of the step's tokens, and what attention to tokens
        reads."""
        kinds = dict.fromkeys(spec for spec in self.shape.compressed if spec.rate)
        plans = {spec: self._planned(layout, spec) for spec in kinds}
        return CompressedStep(self, groups, plans)

    def _planned(self, layout: BatchLayout, spec: CompressedSpec) -> _KindPlan:
        size, rate = self.shape.block_size, spec.rate
        of_block = entries_of_block(rate, size)
        zero = self._blocks * of_block
        positions, firsts, places, tables = [], [], [], []
        for table, start, count in zip(
            layout.block_tables, layout.starts.tolist(), layout.counts.tolist(), strict=True
        ):
            own = _places(table, (start + count) // rate, rate, size, of_block)
            tables.append(own if len(own) else np.array([zero]))
            made = np.arange(start // rate, (start + count) // rate)
            places.append(own[made])
            firsts.append(made * rate)
            positions.append((made[:, None] + 1) * rate - spec.reach + np.arange(spec.reach))
        last = (layout.positions + 1) // rate - 1
        index = spec.index
        return _KindPlan(
            torch.from_numpy(np.concatenate(positions)) >= 0,
            [torch.from_numpy(_slots(each, positions, size)) for each in layout.tables],
            torch.from_numpy(np.concatenate(firsts)),
            torch.from_numpy(np.concatenate(places)),
            self._laid_out(layout, tables, last, zero, self.shape.num_heads),
            None if index is None else self._laid_out(layout, tables, last, zero, index.heads),
        )

    def _laid_out(
        self,
        layout: BatchLayout,
        tables: Sequence[np.ndarray],
        last: np.ndarray,
        zero: int,
        heads: int,
    ) -> ops.AttentionPlan:
        """An entry is a token of a sequence of its own, in a block of its own."""
        return ops.plan_attention(
            tables,
            layout.counts,
            np.array([len(table) for table in tables]),
            block_size=1,
            zero_slot=zero,
            group=heads,
            last_seen=last,
        )


def _parts(shape: CacheShape) -> BlockParts:
    groups = [shape.place(number)[0] for number in range(len(shape.compressed))]
    return block_parts(shape.compressed, groups, shape.head_dim, shape.block_size)


def _slots(tables: Sequence[np.ndarray], positions: Sequence[np.ndarray], size: int) -> np.ndarray:
    """Where a group's blocks have the tokens at each sequence's positions, [entries, reach] int64;
    of a token that there isn't, where any other is."""
    found = []
    for table, each in zip(tables, positions, strict=True):
        # The last one is in a block that the sequence still has.
        at = np.where(each < 0, each[:, -1:], each)
        found.append(table[at // size] * size + at % size)
    return np.concatenate(found)


def _places(table: np.ndarray, count: int, rate: int, size: int, of_block: int) -> np.ndarray:
    """Where a sequence's first entries are kept, [count] int64."""
    block, within = np.divmod((np.arange(count) + 1) * rate - 1, size)
    return table[block] * of_block + within * of_block // size


@dataclass(frozen=True)
class _KindPlan:
    """A step's entries, in all layers of one kind."""

    there: Tensor
    """[entries, reach] bool: which tokens there are that each entry is made of whose last token is
    the step's."""
    tokens: Sequence[Tensor]
    """Slots of these tokens in each group: [entries, reach] int64."""
    firsts: Tensor
    """[entries] int64: position of the first token that an entry stands for."""
    places: Tensor
    """[entries] int64: where it is kept."""
    seen: ops.AttentionPlan
    """What attention to entries reads."""
    index: ops.AttentionPlan | None


class CompressedStep:
    """CompressedAttention for one step's batch."""

    def __init__(
        self,
        cache: CompressedCache,
        groups: Sequence[tuple[Tensor, ops.AttentionPlan]],
        kinds: dict[CompressedSpec, _KindPlan],
    ) -> None:
        self._cache = cache
        self._groups = groups
        self._kinds = kinds

    def give(self, layer: int, rows: Tensor) -> EntryParts:
        own, plan = self._cache.layers[layer], self._plan(layer)
        if own.given is None:
            raise ValueError(f"layer {layer} has no entries")
        slots, _ = self._groups[own.group]
        ops.write_rows(rows[: len(slots), None], own.given, slots)
        tokens = plan.tokens[own.group]
        read = own.given.index_select(1, tokens.flatten())[0]
        return EntryParts(read.unflatten(0, tokens.shape), plan.there, plan.firsts)

    def store(self, layer: int, entries: Entries) -> None:
        own, plan = self._cache.layers[layer], self._plan(layer)
        for rows, kept in ((entries.entries, own.entries), (entries.keys, own.index)):
            if rows is not None and kept is not None:
                ops.write_rows(rows[:, None], kept, plan.places)

    def choose(self, layer: int, query: Tensor, weights: Tensor, index: IndexSpec) -> Tensor:
        keys, plan = self._cache.layers[layer].index, self._plan(layer).index
        if keys is None or plan is None:
            raise ValueError(f"layer {layer} has no index")
        return ops.choose_tokens(query, weights, keys, plan, index.most)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, rule: ScoreRule, chosen: Tensor | None
    ) -> Tensor:
        own = self._cache.layers[layer]
        slots, near = self._groups[own.group]
        ops.write_rows(key[: len(slots)], own.keys, slots)
        scale = query.shape[-1] ** -0.5 if rule.scale is None else rule.scale
        parts = [ops.SeenRows(own.keys, near, window=rule.window)]
        if own.entries is not None:
            parts.append(ops.SeenRows(own.entries, self._plan(layer).seen, chosen=chosen))
        return ops.attention_over(query, parts, scale, rule.sinks)

    def _plan(self, layer: int) -> _KindPlan:
        return self._kinds[self._cache.shape.compressed[layer]]
