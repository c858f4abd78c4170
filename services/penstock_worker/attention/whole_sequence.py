"""Attention of one whole sequence without a cache, in torch's own operations."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.model import mechanisms as mechanism
from penstock_worker.attention.interface import ScoreRule

WHOLE_SEQUENCE_MECHANISMS = frozenset(
    {
        mechanism.WINDOW,
        mechanism.CHUNKS,
        mechanism.SCORE_SOFT_CAP,
        mechanism.SCORE_SCALE,
        mechanism.SINKS,
        mechanism.NO_ROTATION,
        mechanism.PARTIAL_ROTATION,
        mechanism.SEVERAL_ROTATIONS,
        mechanism.WHOLE_NORM,
        mechanism.LAYER_NORM,
        mechanism.OUTPUT_NORMS,
        mechanism.PARALLEL,
        mechanism.GELU,
        mechanism.GELU_TANH,
        mechanism.RELU2,
        mechanism.UNGATED,
        mechanism.OUTPUT_BIAS,
        mechanism.FEED_FORWARD_BIAS,
        mechanism.RESIDUAL_MULTIPLIER,
        mechanism.EMBEDDING_MULTIPLIER,
        mechanism.LOGITS_RULE,
        mechanism.QUERY_GROWTH,
    }
)
"""What a decoder with this attention and the reference's operations computes beyond Llama's
layers."""


def attended(
    query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None = None, *, rule: ScoreRule
) -> Tensor:
    """Causal attention of one whole sequence, in torch's own operations. `query` is [tokens, heads,
    size], `key` and `value` are [tokens, kv_heads, size], float32. Returns [tokens, heads, size of
    a value]."""
    count, heads, size = query.shape
    key, value = (each.repeat_interleave(heads // each.shape[1], 1) for each in (key, value))
    scale = size**-0.5 if rule.scale is None else rule.scale
    scores = torch.einsum("qhd,khd->hqk", query * scale, key)
    if rule.soft_cap is not None:
        scores = rule.soft_cap * torch.tanh(scores / rule.soft_cap)
    scores = scores.masked_fill(_hidden(count, rule), float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks[:, None, None].expand(-1, count, 1)), -1)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., :count], value)


def _hidden(count: int, rule: ScoreRule) -> Tensor:
    """Which keys a query doesn't see, [queries, keys]."""
    positions = torch.arange(count)
    query, key = positions[:, None], positions
    hidden = key > query
    if rule.window is not None:
        hidden = hidden | (key <= query - rule.window)
    if rule.chunk is not None:
        hidden = hidden | (key < query // rule.chunk * rule.chunk)
    return hidden
