"""Attention to tokens and to entries that stand for several tokens each (DeepSeek-AI,
"DeepSeek-V4", 2026).

A row's bits depend on its sequence alone, as those of paged_attention do: each part is computed as
that is, and the parts are put together in one order. An entry is made number by number, token after
token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from penstock_kernels.reference.attention import folded, partials, query_tiles, rows_of
from penstock_kernels.reference.attention_plan import AttentionPlan
from penstock_kernels.reference.kv_cache import KVRows

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SeenRows:
    """What queries see in one cache."""

    rows: KVRows
    """[1, slots, head_dim]: keys, which are their own values."""
    plan: AttentionPlan
    window: int | None = None
    chosen: Tensor | None = None
    """`window` and `chosen` hide keys as those of paged_attention do."""


def attention_over(
    query: Tensor, parts: Sequence[SeenRows], scale: float, sinks: Tensor | None
) -> Tensor:
    """One softmax over all parts.

    `query`: [rows, heads, head_dim]; rows beyond the plans' are padding. All heads share a key.
    `sinks`: [heads] float32, as paged_attention's.

    Returns [rows, heads, head_dim] in the query's dtype; padding rows are zero.
    """
    top, total, mixed = _of_part(query, parts[0], scale)
    for part in parts[1:]:
        other, more, values = _of_part(query, part, scale)
        both = torch.maximum(top, other)
        keep, add = torch.exp(top - both), torch.exp(other - both)
        total, mixed, top = total * keep + more * add, mixed * keep + values * add, both
    if sinks is not None:
        own = sinks.float()[None, :, None]
        both = torch.maximum(top, own)
        keep = torch.exp(top - both)
        total, mixed = total * keep + torch.exp(own - both), mixed * keep
    # Padding has seen nothing, not even a sink's score where there are none.
    return torch.where(total == 0, 0.0, mixed / total).to(query.dtype)


def _of_part(query: Tensor, part: SeenRows, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Returns each row's and head's maximum and sum, [rows, heads, 1], and weighted values, [rows,
    heads, head_dim], float32."""
    rows, heads, size = query.shape
    top, total, mixed = (torch.zeros(rows, heads, numbers) for numbers in (1, 1, size))
    for group in part.plan.groups:
        tiles = query_tiles(query, group, 1, scale)
        hidden = group.hidden(part.window)
        if part.chosen is not None:
            hidden = hidden | group.left_out(part.chosen)
        found = folded(*partials(tiles, part.rows, part.rows, group, hidden, None), group)
        for out, each in zip((top, total, mixed), found, strict=True):
            by_row = rows_of(each if each.dim() == 4 else each[..., None], heads)
            out[group.out_rows] = by_row[group.out_places, :, : out.shape[-1]]
    return top, total, mixed


def entries_of(values: Tensor, logits: Tensor, there: Tensor) -> Tensor:
    """Makes entries of tokens: each number is the sum of the tokens' values, weighed by the softmax
    over tokens of their logits.

    `values`, `logits`: [entries, tokens, size].
    `there`: [entries, tokens] bool, which tokens there are; of each entry the last one is.
    Returns [entries, size] float32.
    """
    logits = logits.float().masked_fill(~there[..., None], float("-inf"))
    values = values.float().masked_fill(~there[..., None], 0.0)
    tokens = range(values.shape[1])
    top = logits[:, -1]
    for token in tokens:
        top = torch.maximum(top, logits[:, token])
    total, mixed = torch.zeros_like(top), torch.zeros_like(top)
    for token in tokens:
        weights = torch.exp(logits[:, token] - top)
        total = total + weights
        mixed = mixed + weights * values[:, token]
    return mixed / total
