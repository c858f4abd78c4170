"""Attention whose scores also say how far query and key are apart, in plain torch on any device.

Promise: as that of `reference.encoder`. One input is computed at a time, in memory of its own.

Source: He et al., "DeBERTa: Decoding-enhanced BERT with disentangled attention", 2021, section 3.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Distances:
    """What a layer's queries and keys are multiplied by in addition to each other."""

    rows: Tensor
    """[distances] int64: of each distance from 1 - longest to longest - 1, query after key, the
    row of the tables; rising."""
    keys: Tensor | None
    """[heads, rows, head_dim] float32; None: distances have no keys."""
    queries: Tensor | None
    """[heads, rows, head_dim] float32; None: distances have no queries."""
    scale: float
    """Factor of the sum of products."""


def distance_rows(span: int, farthest: int, longest: int) -> Tensor:
    """Returns Distances.rows for a table of 2 * `span` rows, of which the one in the middle stands
    for distance 0. `farthest`: distance from which on all share the last row; beyond half of the
    span, rows are shared on a logarithmic scale. 0: no row is shared."""
    distance = torch.arange(1 - longest, longest)
    place = distance
    if farthest:
        near = span // 2
        apart = torch.where(distance.abs() < near, near - 1, distance.abs())
        # In float32, as in transformers: the last row of a distance is a matter of rounding.
        ratio = torch.log(apart / near) / torch.log(torch.tensor((farthest - 1) / near))
        shared = torch.ceil(ratio * (near - 1)) + near
        place = torch.where(apart <= near, distance, (shared * distance.sign()).long())
    return (place + span).clamp(0, 2 * span - 1)


def attend_disentangled(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: list[int],
    distances: Distances,
    seen: list[int] | None = None,
) -> Tensor:
    """softmax((q k^T + q K^T + k Q^T) scale) v, within each input, where K and Q are the keys and
    queries of the distances. Computed in float32.

    `query`, `key`, `value`: [rows, heads, head_dim], one input after another; rows beyond the sum
    of lengths are padding.
    `seen`: of each input, how many keys its rows see, the first ones; None for all.

    Returns [rows, heads, head_dim]; padding rows are zero.
    """
    out = query.new_zeros(query.shape)
    start = 0
    for length, count in zip(lengths, seen or lengths, strict=True):
        rows, visible = slice(start, start + length), slice(start, start + count)
        queries, keys, values = (
            each.transpose(0, 1).float().contiguous()
            for each in (query[rows], key[visible], value[visible])
        )
        scores = queries @ keys.transpose(1, 2) + _of_distances(queries, keys, distances)
        mixed = torch.softmax(scores * distances.scale, -1) @ values
        out[rows] = mixed.transpose(0, 1).to(query.dtype)
        start = rows.stop
    return out


def _of_distances(queries: Tensor, keys: Tensor, distances: Distances) -> Tensor:
    """Returns what scores get, [heads, queries, keys]."""
    (heads, length, _), count = queries.shape, keys.shape[1]
    middle, place = len(distances.rows) // 2, torch.arange(length, device=queries.device)
    # An input's own distances, and the rows of these.
    own = distances.rows[middle + 1 - count : middle + length]
    between = place[:, None] - place[None, :count] + count - 1
    at = (own - own[0])[between]
    scores = queries.new_zeros(heads, length, count)
    # Tables are cut on the device: how many rows they need isn't asked of it.
    width = length + count - 1
    if distances.keys is not None:
        table = _cut(distances.keys, own[0], width)
        products = queries @ table.transpose(1, 2)
        scores += products.gather(2, at.expand(heads, -1, -1))
    if distances.queries is not None:
        table = _cut(distances.queries, own[0], width)
        products = keys @ table.transpose(1, 2)
        scores += products.gather(2, at.t().expand(heads, -1, -1)).transpose(1, 2)
    return scores


def _cut(table: Tensor, first: Tensor, width: int) -> Tensor:
    """Returns `width` rows of the table from `first` on, or as many as there are at most. Those
    after its end are its last one."""
    width = min(width, table.shape[1])
    rows = (first + torch.arange(width, device=table.device)).clamp(max=table.shape[1] - 1)
    return table.index_select(1, rows)


def attention_scale(head_dim: int, terms: int) -> float:
    """Factor of a score that is the sum of so many products."""
    return 1.0 / math.sqrt(head_dim * terms)
