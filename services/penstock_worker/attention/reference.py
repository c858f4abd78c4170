"""The reference backend: plain torch on the CPU, slow and obvious."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from penstock.model.attention_spec import IndexSpec, KVHeadsSpec
from penstock.model.block_index_spec import BlockIndexSpec
from penstock.model.kv_layout import FULL, KVGroup
from penstock_kernels import reference as ops
from penstock_worker.attention.compressed import CompressedCache, CompressedStep
from penstock_worker.attention.interface import (
    PLAIN_RULE,
    BatchLayout,
    CacheShape,
    HeadNorms,
    IndexRows,
    Rotation,
    ScoreRule,
)


def normalised_and_rotated(
    query: Tensor, key: Tensor, rotation: Rotation | None, norms: HeadNorms | None
) -> tuple[Tensor, Tensor]:
    """Returns a step's queries and keys as attention multiplies them; see StepAttention.attend."""
    if norms is not None and not norms.behind:
        query, key = _normalised(query, key, norms)
    if rotation is not None:
        query = ops.apply_rope(query, *rotation.rows)
        key = ops.apply_rope(key, *rotation.rows)
    if norms is not None and norms.behind:
        query, key = _normalised(query, key, norms)
    return query if rotation is None else rotation.grown(query), key


def _normalised(query: Tensor, key: Tensor, norms: HeadNorms) -> tuple[Tensor, Tensor]:
    return ops.rms_norm(query, norms.query, norms.eps), ops.rms_norm(key, norms.key, norms.eps)


class ReferenceAttention:
    """Keys and values of a layer are two tensors [kv_heads, slots, head_dim], or Int8Rows. Values
    that are parts of keys are read there. Layers with heads of different sizes have them in tensors
    [slots, numbers], which are as wide as the widest needs.

    One more block is allocated than the cache has. Its slots stay zero, and are read as padding.
    """

    name: ClassVar[str] = "reference"

    def __init__(self, shape: CacheShape, num_blocks: int) -> None:
        self.shape = shape
        self.zero_slot = num_blocks * shape.block_size
        self._compressed = CompressedCache(shape, num_blocks) if shape.compressed else None
        self.keys: list[ops.KVRows] = (
            [self._layer() for _ in range(shape.num_layers)]
            if self._compressed is None
            else [each.keys for each in self._compressed.layers]
        )
        own = shape.num_layers if shape.index is not None else 0
        self.index = [self._layer(of_index=shape.index) for _ in range(own)]
        self.values = [self._values(keys) for keys in self.keys]

    def _values(self, keys: ops.KVRows) -> ops.KVRows:
        own = self.shape.value_in_key
        return self._layer() if own is None else ops.LastNumbers(keys, own)

    def _layer(self, of_index: IndexSpec | BlockIndexSpec | None = None) -> Tensor | ops.Int8Rows:
        # Not filled: the system allocates pages on first use, and slots are written before they are
        # read.
        shape, slots = self.shape, self.zero_slot + self.shape.block_size
        if shape.heads_of_layers:
            wide = torch.empty(slots, _width(shape), dtype=shape.dtype)
            wide[self.zero_slot :] = 0
            return wide
        sizes = (shape.num_kv_heads, slots, shape.head_dim)
        if of_index is not None:
            sizes = (1, slots, of_index.size)
        quantised = shape.dtype == torch.int8
        cache: Tensor | ops.Int8Rows
        cache = ops.Int8Rows(*sizes) if quantised else torch.empty(*sizes, dtype=shape.dtype)
        zeros = torch.zeros(sizes[0], shape.block_size, sizes[2], dtype=cache.dtype)
        cache.index_copy_(1, torch.arange(self.zero_slot, slots), zeros)
        return cache

    @staticmethod
    def block_bytes(shape: CacheShape) -> int:
        if shape.compressed:
            return CompressedCache.block_bytes(shape)
        if shape.heads_of_layers:
            each = _width(shape) * shape.dtype.itemsize
            return 2 * shape.num_layers * each * shape.block_size
        scale = torch.float32.itemsize if shape.dtype == torch.int8 else 0
        per_head = shape.head_dim * shape.dtype.itemsize + scale
        parts = 2 if shape.value_in_key is None else 1
        of_token = parts * shape.num_kv_heads * per_head
        if shape.index is not None:
            of_token += shape.index.size * shape.dtype.itemsize + scale
        return shape.num_layers * of_token * shape.block_size

    def kv_blocks(self) -> list[np.ndarray]:
        if self._compressed is not None:
            return self._compressed.kv_blocks()
        blocks = self.zero_slot // self.shape.block_size
        parts = [
            part
            for cache in (
                *self.keys,
                *(self.values if self.shape.value_in_key is None else ()),
                *self.index,
            )
            for part in (
                (cache.levels, cache.scales) if isinstance(cache, ops.Int8Rows) else (cache,)
            )
        ]
        if self.shape.heads_of_layers:
            rows = [part for part in (*self.keys, *self.values) if isinstance(part, Tensor)]
            wide = [part[: self.zero_slot].view(torch.uint8) for part in rows]
            return [part.reshape(blocks, -1).numpy() for part in wide]
        # The slots of a block are contiguous within each head.
        heads = [head[: self.zero_slot].view(torch.uint8) for part in parts for head in part]
        return [head.reshape(blocks, -1).numpy() for head in heads]

    def asked_by(self, heads: int) -> ReferenceAttention:
        """Returns the same keys and values, for layers that have so many query heads."""
        other = copy(self)
        other.shape = replace(self.shape, num_heads=heads, query_heads=frozenset())
        vars(other).pop("_sharing", None)
        return other

    def of_layer(self, layer: int) -> tuple[ops.KVRows, ops.KVRows]:
        """Returns the keys and values of a layer, each [kv_heads, slots, head_dim]."""
        _, place = self.shape.place(layer)
        keys, values = self.keys[place], self.values[place]
        if not self.shape.heads_of_layers:
            return keys, values
        heads = self.shape.heads_of_layers[layer]
        return _by_head(keys, heads), _by_head(values, heads)

    def plan(self, layout: BatchLayout) -> ReferenceStep:
        tables = zip(self.shape.groups, layout.tables, strict=True)
        groups = [self._plan(layout, *each) for each in tables]
        index = compressed = None
        if self.shape.index is not None:
            index = self._laid_out(layout, FULL, layout.block_tables, self.shape.index.heads)
        causal = None
        if layout.last_seen is not None:
            causal = partial(self.plan, replace(layout, last_seen=None, between=None))
        if self._compressed is not None:
            near = [(slots, plans[self.shape.num_heads]) for slots, plans in groups]
            compressed = self._compressed.plan(layout, near)
        return ReferenceStep(self, groups, index, causal, compressed)

    def _plan(
        self, layout: BatchLayout, group: KVGroup, tables: Sequence[np.ndarray]
    ) -> tuple[Tensor, dict[int, ops.AttentionPlan]]:
        """Returns the slots of a step's keys and values in a KV group, and what its attention reads
        in layers in which so many query heads share a key."""
        size, slots = self.shape.block_size, []
        starts = layout.starts.tolist()
        for table, start, count in zip(tables, starts, layout.counts.tolist(), strict=True):
            position = np.arange(start, start + count)
            slots.append(table[position // size] * size + position % size)
        plans = {each: self._laid_out(layout, group, tables, each) for each in self._sharing}
        return torch.from_numpy(np.concatenate(slots)), plans

    def _laid_out(
        self, layout: BatchLayout, group: KVGroup, tables: Sequence[np.ndarray], heads: int
    ) -> ops.AttentionPlan:
        """heads: query heads that share a key."""
        return ops.plan_attention(
            tables,
            layout.counts,
            layout.starts + layout.counts,
            block_size=self.shape.block_size,
            zero_slot=self.zero_slot,
            group=heads,
            firsts=[group.first_seen(start) for start in layout.starts.tolist()],
            last_seen=layout.last_seen,
            between=layout.between,
        )

    @cached_property
    def _sharing(self) -> set[int]:
        """How many query heads may share a key."""
        shape = self.shape
        counts = {each.count for each in shape.heads_of_layers} or {shape.num_kv_heads}
        heads = {shape.num_heads, *shape.query_heads}
        return {each // count for each in heads for count in counts if each >= count}


def _width(shape: CacheShape) -> int:
    """Numbers of a token's keys, where they are most."""
    return max(each.count * each.size for each in shape.heads_of_layers)


def _by_head(rows: ops.KVRows, heads: KVHeadsSpec) -> Tensor:
    if not isinstance(rows, Tensor):
        raise TypeError("only plain tensors have heads of different sizes")
    own = rows[:, : heads.count * heads.size]
    return own.unflatten(1, (heads.count, heads.size)).transpose(0, 1)


class ReferenceStep:
    """The attention of one step."""

    def __init__(
        self,
        backend: ReferenceAttention,
        groups: list[tuple[Tensor, dict[int, ops.AttentionPlan]]],
        index: ops.AttentionPlan | None = None,
        causal: Callable[[], ReferenceStep] | None = None,
        compressed: CompressedStep | None = None,
    ) -> None:
        """`causal` makes the causal form of the step; None: it is causal already. `groups` has for
        each KV group [tokens] int64, where the step's keys and values are stored, and its
        attention's plan for layers in which so many query heads share a key. `index`: the plan of
        an index's heads."""
        self._backend = backend
        self._groups = groups
        self._index = index
        self._chosen: Tensor | None = None
        self._causal = None if causal is None else cache(causal)
        self._compressed = compressed

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rotation: Rotation | None,
        norms: HeadNorms | None = None,
        rule: ScoreRule = PLAIN_RULE,
    ) -> Tensor:
        if rule.causal and self._causal is not None:
            return self._causal().attend(layer, query, key, value, rotation, norms, rule)
        query, key = normalised_and_rotated(query, key, rotation, norms)
        group, _ = self._backend.shape.place(layer)
        slots, plans = self._groups[group]
        keys, values = self._backend.of_layer(layer)
        count = slots.shape[0]
        if not key.shape[1]:
            pass  # another layer has stored them
        elif self._backend.shape.value_in_key is None:
            ops.write_kv(key[:count], value[:count], keys, values, slots)
        else:
            ops.write_rows(key[:count], keys, slots)
        scale = query.shape[-1] ** -0.5 if rule.scale is None else rule.scale
        return ops.paged_attention(
            query,
            keys,
            values,
            plans[query.shape[1] // keys.shape[0]],
            scale,
            window=rule.window,
            chunk=rule.chunk,
            soft_cap=rule.soft_cap,
            sinks=rule.sinks,
            chosen=self._chosen if rule.chosen else None,
        )

    def compressed(self) -> CompressedStep:
        if self._compressed is None:
            raise ValueError("the cache has no entries that stand for several tokens")
        return self._compressed

    def choose(self, layer: int, rows: IndexRows, rotation: Rotation, most: int) -> None:
        """Chooses the tokens that the rows read, as ChoosingAttention describes."""
        query = ops.apply_rope(rows.query, *rotation.rows)
        key = ops.apply_rope(rows.key, *rotation.rows)
        keys, plan = self._indexed(layer, key)
        self._chosen = ops.choose_tokens(query, rows.weights, keys, plan, most)

    def choose_blocks(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        rotation: Rotation,
        norms: HeadNorms,
        index: BlockIndexSpec,
    ) -> None:
        """Chooses the blocks that the rows read, as BlockChoosingAttention describes."""
        query, key = normalised_and_rotated(query, key, rotation, norms)
        keys, plan = self._indexed(layer, key)
        self._chosen = ops.choose_blocks(
            query, keys, plan, block=index.block, most=index.most, local=index.local
        )

    def _indexed(self, layer: int, key: Tensor) -> tuple[ops.KVRows, ops.AttentionPlan]:
        """Stores the keys of an index. Returns those of the layer, and how the index reads them."""
        if self._index is None:
            raise ValueError("the cache has no keys of an index")
        group, place = self._backend.shape.place(layer)
        slots, _ = self._groups[group]
        keys = self._backend.index[place]
        ops.write_rows(key[: len(slots)], keys, slots)
        return keys, self._index
