"""Calls of the kernels for adapters, for the compiler."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from penstock_kernels.triton.experts import low_rank as low_rank_experts
from penstock_kernels.triton.experts.placing import place_rows
from penstock_kernels.triton.linear import low_rank, own_matrices
from penstock_kernels.triton.matmul_tiles import LOW_RANK, LOW_RANK_MANY, expert_tiles
from tests.kernels.triton.calls_of_experts import rows

BF16 = torch.bfloat16


def adapters(rank: int = 16, dtype: torch.dtype = BF16, *, many: bool = False) -> None:
    """Calls for adapters of queries, keys and values of an 8B model, and of its way down; in 4
    places."""
    for parts, inputs in (((4096, 1024, 1024), 4096), ((4096,), 14336)):
        width, outputs = len(parts) * rank, sum(parts)
        numbers = rows(4, width * inputs + outputs * rank, dtype=dtype)
        tiles = adapter_tiles(many=many)
        count = tiles.order.shape[0]
        for gains in (None, rows(4, 2, outputs, dtype=torch.float32)):
            low_rank.add_low_rank(
                rows(count, inputs, dtype=dtype),
                rows(count, outputs, dtype=dtype),
                low_rank.LowRankFactors(
                    numbers[:, : width * inputs].unflatten(1, (width, inputs)),
                    numbers[:, width * inputs :].unflatten(1, (outputs, rank)),
                    torch.zeros(4, 7, dtype=torch.int32)[:, 1],
                    parts,
                    gains,
                ),
                tiles,
            )


def adapter_tiles(*, many: bool = False) -> low_rank.AdapterTiles:
    count = 256 if many else 2
    lists = (torch.zeros(each, dtype=torch.int32) for each in (count, 4, 4, 4, count))
    return low_rank.AdapterTiles(LOW_RANK_MANY if many else LOW_RANK, *lists)


def adapted_ends(dtype: torch.dtype = BF16, *, many: bool = False) -> None:
    """Embedding and head of an 8B model, by factors and as whole matrices."""
    tiles, vocab, hidden = adapter_tiles(many=many), 1024, 4096
    count = tiles.order.shape[0]
    held, ids = torch.zeros(4, 7, dtype=torch.int32)[:, 1], torch.zeros(count, dtype=torch.int64)
    own = own_matrices.OwnMatrices(rows(4, vocab, hidden, dtype=dtype), held)
    x, logits = rows(count, hidden, dtype=dtype), rows(count, vocab, dtype=torch.float32)
    own_matrices.replace_rows(ids, x, own, tiles)
    own_matrices.replace_products(x, logits, own, tiles)
    down, up = rows(4, vocab, 16, dtype=dtype), rows(4, hidden, 16, dtype=dtype)
    factors = low_rank.LowRankFactors(down, up, held, (hidden,))
    own_matrices.add_looked_up(ids, x, factors, tiles)
    gains = rows(4, 2, vocab, dtype=torch.float32)
    down, up = rows(4, 16, hidden, dtype=dtype), rows(4, vocab, 16, dtype=dtype)
    factors = low_rank.LowRankFactors(down, up, held, (vocab,), gains)
    low_rank.add_low_rank(x, logits, factors, tiles)


def adapted_experts(
    rank: int = 16, dtype: torch.dtype = BF16, parts: tuple[int, ...] = (96, 96)
) -> None:
    """Calls for one row, a few, many and very many; in 4 places."""
    count, active, outputs = 128, 8, sum(parts)
    down = rows(4, count, len(parts) * rank, 64, dtype=dtype)
    for number in (1, 300, 256 * count // active):
        chosen = torch.zeros(number, active, dtype=torch.int32)
        shape = expert_tiles(chosen.numel(), count, batch_invariant=False)
        placed = place_rows(chosen, count, shape.rows)
        low_rank_experts.add_low_rank_experts(
            rows(number, 64, dtype=dtype),
            rows(number * active, outputs, dtype=dtype),
            low_rank_experts.FactorsOfExperts(
                down,
                rows(4, count, outputs, rank, dtype=dtype),
                torch.zeros(4, 3 * count, dtype=torch.int32)[:, count : 2 * count],
                parts,
                rows(4, count, 2, outputs, dtype=torch.float32),
            ),
            placed,
            torch.zeros(number, dtype=torch.int32),
        )


ADAPTER_CALLS: dict[str, Callable[[], object]] = {
    "adapters": adapters,
    "adapters-64": partial(adapters, 64, many=True),
    "adapters-float32": partial(adapters, 64, torch.float32),
    "adapted-ends": adapted_ends,
    "adapted-ends-many": partial(adapted_ends, many=True),
    "adapted-ends-float32": partial(adapted_ends, torch.float32),
    "adapted-experts": adapted_experts,
    "adapted-experts-down": partial(adapted_experts, 64, parts=(128,)),
    "adapted-experts-float32": partial(adapted_experts, 64, torch.float32),
}
