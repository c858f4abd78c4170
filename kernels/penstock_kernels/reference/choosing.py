"""The choice of the tokens that attention reads, by an index (DeepSeek-AI, "DeepSeek-V3.2", 2025),
or of blocks of them (MiniMax, "MiniMax M3", 2026).

Where tokens are chosen, one's score for another one is the sum over heads of weight times the part
above 0 of query times key. Scores are computed split by split, as attention's are, and summed in
the order of heads, so that a token's choice depends on its sequence alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from penstock_kernels.reference.attention import gather_keys, query_tiles
from penstock_kernels.reference.attention_plan import KEY_SPLIT, AttentionPlan
from penstock_kernels.reference.batched import batched_product
from penstock_kernels.reference.kv_cache import KVRows

if TYPE_CHECKING:
    from torch import Tensor


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
    return _highest(scores, most) & seen


def choose_blocks(
    query: Tensor, key_cache: KVRows, plan: AttentionPlan, *, block: int, most: int, local: int
) -> Tensor:
    """Returns which positions the queries of each KV head read in each row, [rows, heads,
    positions] bool: of those that the row sees, all in the `most` blocks with the highest scores,
    of equal scores the first; all if there aren't more. A block has so many positions, the first
    one those from 0 on; its score is the largest product of the query with a key that is seen. The
    row's own block and those before it, `local` in all, come before others. There are at least as
    many positions as the longest sequence's splits have.

    `query`: [rows, heads, size], rotated, a head for each KV head; rows beyond the plan's are
    padding.
    `key_cache`: [1, slots, size].
    `plan`: as paged_attention's, where all heads of the index share a key.
    """
    heads = query.shape[1]
    splits = max(len(group.split_tiles) for group in plan.groups)
    blocks = -(-splits * KEY_SPLIT // block)
    shape = (len(query), heads, blocks * block)
    scores = query.new_full(shape, float("-inf"), dtype=torch.float32)
    seen = torch.zeros(len(query), blocks * block, dtype=torch.bool)
    for group in plan.groups:
        rows = group.rows[group.pair_tiles][:, :, None]
        tiles = query_tiles(query, group, 1, 1.0)[0][group.pair_tiles]
        keys = gather_keys(key_cache, group.slots)[0]
        products = batched_product(tiles, keys.transpose(1, 2))
        by_head = products.view(len(rows), rows.shape[1], heads, KEY_SPLIT)
        positions = group.keys[:, 0]
        for head in range(heads):
            scores[rows, head, positions] = by_head[:, :, head]
        seen[rows, positions] = ~group.later[:, :, 0]
    scores.masked_fill_(~seen[:, None], float("-inf"))
    of_blocks = scores.unflatten(2, (blocks, block)).amax(-1)
    number, own = torch.arange(blocks), (seen.sum(1, keepdim=True) - 1) // block
    near = (number <= own) & (number > own - local)
    of_blocks.masked_fill_(near[:, None], float("inf"))
    chosen = _highest(of_blocks, most)
    return chosen.repeat_interleave(block, dim=2) & seen[:, None]


def _highest(scores: Tensor, most: int) -> Tensor:
    """Returns where the `most` highest scores are in the last dimension, of equal ones the first,
    bool."""
    order = scores.sort(dim=-1, descending=True, stable=True).indices[..., :most]
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order, True)
