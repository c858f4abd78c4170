"""What the reference backend keeps for compressed attention (see CompressedSpec), beside a token's
key, and how a step reads and writes it.

A layer's blocks have for each token what it gives to entries, and, for each entry whose last token
lies in them, the entry and its key in the index. So a block holds all that is made of its tokens:
it can be found by a prefix, swapped, stored and sent as any other. What a token gives is read again
when the entry's last token is computed, in the same step or in a later one: an entry is made of
stored numbers in any case, in one order, so that its bits don't depend on how tokens were divided
into chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock.model.kv_layout import compressed_numbers, entries_of_block
from penstock.model.layer_spec import CompressedSpec, IndexSpec
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
    """Rows of a layer, each [1, places, numbers]. The places of one more block than the cache has
    stay zero."""

    given: Tensor | None
    """What each token gives to entries: values, then logits; both for the index behind it."""
    entries: Tensor | None
    index: Tensor | None
    """Keys of entries."""

    @property
    def parts(self) -> list[Tensor]:
        return [part for part in (self.given, self.entries, self.index) if part is not None]


class CompressedCache:
    """What all layers have beside keys."""

    def __init__(self, shape: CacheShape, num_blocks: int) -> None:
        self.shape = shape
        self._blocks = num_blocks
        self.layers = [self._layer(spec) for spec in shape.compressed]

    def _layer(self, spec: CompressedSpec) -> _Layer:
        shape, head, index = self.shape, self.shape.head_dim, spec.index
        if not spec.rate:
            return _Layer(None, None, None)
        of_index = 0 if index is None else index.size
        entries = entries_of_block(spec.rate, shape.block_size)
        return _Layer(
            self._rows(shape.block_size, 2 * spec.series * (head + of_index)),
            self._rows(entries, head),
            None if index is None else self._rows(entries, of_index),
        )

    def _rows(self, of_block: int, numbers: int) -> Tensor:
        # Not filled: places are written before they are read.
        rows = torch.empty(1, (self._blocks + 1) * of_block, numbers, dtype=self.shape.dtype)
        rows[:, self._blocks * of_block :] = 0
        return rows

    @staticmethod
    def block_bytes(shape: CacheShape) -> int:
        """Returns the size of a block, without keys."""
        sizes = (
            compressed_numbers(spec, shape.head_dim, shape.block_size) for spec in shape.compressed
        )
        keys = len(shape.compressed) * shape.block_size * shape.head_dim
        return (sum(sizes) - keys) * shape.dtype.itemsize

    def kv_blocks(self) -> list[np.ndarray]:
        found = []
        for part in (part for layer in self.layers for part in layer.parts):
            places = part.shape[1] // (self._blocks + 1) * self._blocks
            found.append(part[0, :places].view(torch.uint8).reshape(self._blocks, -1).numpy())
        return found

    def plan(
        self,
        layout: BatchLayout,
        keys: Sequence[ops.KVRows],
        slots: Tensor,
        near: ops.AttentionPlan,
    ) -> CompressedStep:
        """keys: of each layer's tokens. slots: of the step's tokens. near: what attention to tokens
        reads."""
        kinds = dict.fromkeys(spec for spec in self.shape.compressed if spec.rate)
        plans = {spec: self._planned(layout, spec) for spec in kinds}
        return CompressedStep(self, keys, slots, near, plans)

    def _planned(self, layout: BatchLayout, spec: CompressedSpec) -> _KindPlan:
        size, rate = self.shape.block_size, spec.rate
        of_block = entries_of_block(rate, size)
        zero = self._blocks * of_block
        tokens, firsts, places, tables = [], [], [], []
        for table, start, count in zip(
            layout.block_tables, layout.starts.tolist(), layout.counts.tolist(), strict=True
        ):
            own = _places(table, (start + count) // rate, rate, size, of_block)
            tables.append(own if len(own) else np.array([zero]))
            made = np.arange(start // rate, (start + count) // rate)
            places.append(own[made])
            firsts.append(made * rate)
            position = (made[:, None] + 1) * rate - spec.reach + np.arange(spec.reach)
            at = np.maximum(position, 0)
            slots = table[at // size] * size + at % size
            tokens.append(np.where(position < 0, -1, slots))
        last = (layout.positions + 1) // rate - 1
        index = spec.index
        return _KindPlan(
            torch.from_numpy(np.concatenate(tokens)),
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


def _places(table: np.ndarray, count: int, rate: int, size: int, of_block: int) -> np.ndarray:
    """Where a sequence's first entries are kept, [count] int64."""
    block, within = np.divmod((np.arange(count) + 1) * rate - 1, size)
    return table[block] * of_block + within * of_block // size


@dataclass(frozen=True)
class _KindPlan:
    """A step's entries, in all layers of one kind."""

    tokens: Tensor
    """[entries, reach] int64: slots of the tokens that each entry is made of whose last token is
    the step's; -1 where a sequence has none."""
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
        keys: Sequence[ops.KVRows],
        slots: Tensor,
        near: ops.AttentionPlan,
        kinds: dict[CompressedSpec, _KindPlan],
    ) -> None:
        self._cache = cache
        self._keys = keys
        self._slots = slots
        self._near = near
        self._kinds = kinds

    def give(self, layer: int, rows: Tensor) -> EntryParts:
        spec, given = self._cache.shape.compressed[layer], self._cache.layers[layer].given
        if given is None:
            raise ValueError(f"layer {layer} has no entries")
        plan = self._kinds[spec]
        ops.write_rows(rows[: len(self._slots), None], given, self._slots)
        read = given[0].index_select(0, plan.tokens.clamp(min=0).flatten())
        return EntryParts(read.unflatten(0, plan.tokens.shape), plan.tokens >= 0, plan.firsts)

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
        ops.write_rows(key[: len(self._slots)], self._keys[layer], self._slots)
        scale = query.shape[-1] ** -0.5 if rule.scale is None else rule.scale
        parts = [ops.SeenRows(self._keys[layer], self._near, window=rule.window)]
        entries = self._cache.layers[layer].entries
        if entries is not None:
            parts.append(ops.SeenRows(entries, self._plan(layer).seen, chosen=chosen))
        return ops.attention_over(query, parts, scale, rule.sinks)

    def _plan(self, layer: int) -> _KindPlan:
        return self._kinds[self._cache.shape.compressed[layer]]
