"""The choice of the tokens that attention reads, by an index (DeepSeek-AI, "DeepSeek-V3.2", 2025).

A token's score for another one is the sum over heads of weight times the part above 0 of query
times key. Scores are computed split by split, as attention's are, and summed in the order of
heads, so that a token's choice depends on its sequence alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from penstock_kernels.reference.attention import (
    KEY_SPLIT,
    AttentionPlan,
    gather_keys,
    query_tiles,
)
from penstock_kernels.reference.batched import batched_product
from penstock_kernels.reference.kv_cache import KVRows


def choose_tokens(
    query: Tensor, weights: Tensor, key_cache: KVRows, plan: AttentionPlan, most: int
) -> Tensor:
    """Returns which positions each row reads, [rows, positions] bool: of those that it sees, the
    `most` with the highest scores, of equal scores the first; all if they aren't more. There are
    at least as many positions as the longest sequence's splits have.

    `query`: [rows, heads, size], rotated; rows beyond the plan's are padding.
    `weights`: [rows, heads].
    `key_cache`: [1, slots, size].
    `plan`: as paged_attention's, where all heads of the index share a key.
    """
    splits = max(len(group.split_tiles) for group in plan.groups)
    scores = query.new_full((len(query), splits * KEY_SPLIT), float("-inf"), dtype=torch.float32)
    seen = torch.zeros(scores.shape, dtype=torch.bool)
    for group in plan.groups:
        rows = group.rows[group.pair_tiles][:, :, None]
        tiles = query_tiles(query, group, 1, 1.0)[0][group.pair_tiles]
        keys = gather_keys(key_cache, group.slots)[0]
        products = batched_product(tiles, keys.transpose(1, 2)).relu_()
        by_head = products.view(len(rows), rows.shape[1], -1, KEY_SPLIT)
        total = torch.zeros_like(by_head[:, :, 0])
        for head in range(by_head.shape[2]):
            total += weights[:, head].float()[rows] * by_head[:, :, head]
        positions = group.keys[:, 0]
        scores[rows, positions] = total
        seen[rows, positions] = ~group.later[:, :, 0]
    scores.masked_fill_(~seen, float("-inf"))
    order = scores.sort(dim=-1, descending=True, stable=True).indices[:, :most]
    return torch.zeros_like(seen).scatter_(1, order, True) & seen
