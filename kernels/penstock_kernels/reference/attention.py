"""Causal attention of a ragged batch over a paged KV cache.

Any mix of sequences is computed in one call: a decode has one query, a prefill chunk has many. The
work is divided into pairs of

- a query tile: `QUERY_ROWS // group` consecutive queries of a sequence, times the `group` query
  heads that share a KV head, padded where the chunk has fewer queries left; and
- a key split: KEY_SPLIT consecutive token positions, starting at a multiple of KEY_SPLIT.

Each pair gives a partial softmax. A tile's partials are combined in the order of their positions by
the online-softmax recurrence (Milakov and Gimelshein, 2018; Dao et al., 2022). Every pair has the
same shape, whatever the batch, the chunk or the block size, and K and V are always read from the
cache as stored; so a query's bits depend on its sequence alone. A split that a query doesn't see
multiplies its sums by exactly 1 and adds exactly 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from penstock_kernels.reference.activations import soft_cap as capped
from penstock_kernels.reference.batched import batched_product
from penstock_kernels.reference.kv_cache import KVRows

if TYPE_CHECKING:
    from torch import Tensor
from penstock_kernels.reference.attention_plan import KEY_SPLIT, AttentionPlan, TileGroup

GATHER_BYTES = 2 << 20
"""Bytes of keys gathered at a time, about what stays in the L2 cache; more was slower. Bounds
temporary memory, and doesn't affect results."""


LANES = 16
"""Head dimensions are padded with zeros to a multiple of this: 64 bytes of float32. Otherwise the
matrices of a batch would begin at different alignments, and BLAS sums in another order for some of
them."""


_LOWEST = -1e30
"""The maximum over no keys at all. It is finite, so that differences aren't NaN."""


def paged_attention(
    query: Tensor,
    key_cache: KVRows,
    value_cache: KVRows,
    plan: AttentionPlan,
    scale: float,
    *,
    window: int | None = None,
    chunk: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    chosen: Tensor | None = None,
) -> Tensor:
    """softmax(scale * q k^T) v for every query over its sequence's cache, in float32.

    `window`: a query sees its own key and the window - 1 before it; None for all before it.
    `chunk`: a query sees no key before the last multiple of it up to its own position.
    `soft_cap`: scores x become soft_cap * tanh(x / soft_cap).
    `sinks`: [heads] float32, a score of each head that takes part in the softmax without a value.

    `chosen`: [rows, positions] bool, or [rows, kv_heads, positions], which keys each query sees of
    those; None for all.

    `query`: [rows, heads, head_dim]; rows beyond the plan's are padding.
    `key_cache`, `value_cache`: [kv_heads, slots, head_dim]; heads is a multiple of kv_heads, and
    query head h reads KV head h // (heads // kv_heads). Values may have another size than keys.

    Returns [rows, heads, size of a value] in the query's dtype; padding rows are zero.
    """
    size = value_cache.shape[2]
    out = query.new_zeros(*query.shape[:2], size)
    for group in plan.groups:
        tiles = query_tiles(query, group, key_cache.shape[0], scale)
        hidden = group.hidden(window, chunk)
        if chosen is not None:
            hidden = hidden | group.left_out(chosen)
        found = partials(tiles, key_cache, value_cache, group, hidden, soft_cap)
        result = _combine(*found, group, _sinks_by_row(sinks, tiles))
        flat = rows_of(result, query.shape[1])
        out[group.out_rows] = flat[group.out_places, :, :size].to(query.dtype)
    return out


def query_tiles(query: Tensor, group: TileGroup, kv_heads: int, scale: float) -> Tensor:
    """Returns a plan's queries, [kv_heads, tiles, tile rows, padded head_dim], float32, scaled.

    A row is a (query, head) pair.
    """
    tiles = _padded(query[group.rows].float() * scale)
    count, queries, heads, dim = tiles.shape
    tiles = tiles.view(count, queries, kv_heads, heads // kv_heads, dim)
    return tiles.permute(2, 0, 1, 3, 4).reshape(kv_heads, count, -1, dim)


def rows_of(result: Tensor, heads: int) -> Tensor:
    """The inverse of query_tiles: [tiles * tile_queries, heads, padded head_dim]."""
    kv_heads, count, _, dim = result.shape
    split = result.view(kv_heads, count, -1, heads // kv_heads, dim)
    return split.permute(1, 2, 0, 3, 4).reshape(-1, heads, dim)


def partials(
    tiles: Tensor,
    key_cache: KVRows,
    value_cache: KVRows,
    group: TileGroup,
    hidden: Tensor,
    soft_cap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the row maxima and sums of each pair, [kv_heads, pairs, rows], and its weighted
    values, [.., dim]."""
    parts = []
    at_once = max(1, GATHER_BYTES // (key_cache.shape[0] * KEY_SPLIT * key_cache.shape[2] * 4))
    for start in range(0, group.slots.shape[0], at_once):
        some = slice(start, start + at_once)
        query = tiles.index_select(1, group.pair_tiles[some])
        key = gather_keys(key_cache, group.slots[some])
        value = gather_keys(value_cache, group.slots[some])
        parts.append(_pairs(query, key, value, hidden[..., some, :, :, :], soft_cap))
    if len(parts) == 1:
        return parts[0]
    maxima, sums, values = zip(*parts, strict=True)
    return torch.cat(maxima, 1), torch.cat(sums, 1), torch.cat(values, 1)


def gather_keys(cache: KVRows, slots: Tensor) -> Tensor:
    """Returns what a cache has in slots, [pairs, KEY_SPLIT]: [kv_heads, pairs, KEY_SPLIT, padded
    head_dim], float32."""
    kv_heads, _, dim = cache.shape
    rows = cache.index_select(1, slots.reshape(-1)).float().view(kv_heads, -1, KEY_SPLIT, dim)
    return _padded(rows)


def _padded(x: Tensor) -> Tensor:
    """Returns x with its last dimension padded to a multiple of LANES."""
    missing = -x.shape[-1] % LANES
    return torch.nn.functional.pad(x, (0, missing)) if missing else x


def _pairs(
    query: Tensor, key: Tensor, value: Tensor, hidden: Tensor, soft_cap: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    kv_heads, pairs, rows, _ = query.shape
    scores = batched_product(query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2))
    if soft_cap is not None:
        scores = capped(scores, soft_cap)
    by_query = scores.view(kv_heads, pairs, hidden.shape[-3], -1, KEY_SPLIT)
    by_query.masked_fill_(hidden, float("-inf"))
    maxima = scores.amax(-1).clamp_(min=_LOWEST)
    weights = scores.sub_(maxima[..., None]).exp_()
    sums = weights.sum(-1)
    values = batched_product(weights, value.flatten(0, 1))
    shape = (kv_heads, pairs, rows)
    return maxima.view(shape), sums.view(shape), values.view(*shape, value.shape[3])


def _sinks_by_row(sinks: Tensor | None, tiles: Tensor) -> Tensor | None:
    """Returns the sink of each row of a tile, [kv_heads, 1, rows]."""
    if sinks is None:
        return None
    kv_heads, rows = tiles.shape[0], tiles.shape[2]
    by_head = sinks.float().view(kv_heads, -1)
    return by_head.repeat(1, rows // by_head.shape[1])[:, None]


def _combine(
    maxima: Tensor, sums: Tensor, values: Tensor, group: TileGroup, sinks: Tensor | None
) -> Tensor:
    """Combines the partials of each tile, split by split, and the sinks last. Returns [kv_heads,
    tiles, rows, dim]."""
    top, total, mixed = folded(maxima, sums, values, group)
    if sinks is not None:
        both = torch.maximum(top, sinks)
        keep = torch.exp(top - both)
        total, mixed = total * keep + torch.exp(sinks - both), mixed * keep[..., None]
    return mixed / total[..., None]


def folded(
    maxima: Tensor, sums: Tensor, values: Tensor, group: TileGroup
) -> tuple[Tensor, Tensor, Tensor]:
    """Combines the partials of each tile, split by split. Returns rows' maxima and sums, [kv_heads,
    tiles, rows], and their weighted values, [.., dim]. May overwrite the partials."""
    tiles = group.split_tiles[0]
    top, total, mixed = maxima[:, :tiles], sums[:, :tiles], values[:, :tiles]
    start = tiles
    for count in group.split_tiles[1:]:
        part = slice(start, start + count)
        old, new = top[:, :count], maxima[:, part]
        both = torch.maximum(old, new)
        keep, add = torch.exp(old - both), torch.exp(new - both)
        total[:, :count] = total[:, :count] * keep + sums[:, part] * add
        mixed[:, :count] = mixed[:, :count] * keep[..., None] + values[:, part] * add[..., None]
        top[:, :count] = both
        start += count
    return top, total, mixed
