"""What adapters add to a product, against float64, and a row's bits in any company."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock_kernels.triton.linear.low_rank import AdapterTiles, LowRankFactors, add_low_rank
from penstock_kernels.triton.matmul_tiles import LOW_RANK, LOW_RANK_MANY, MatmulTiles
from penstock_worker.adapters.row_tiles import tiles_of

PLACES = 3
RANK = 48
RANKS = (0, 5, 48)
"""Ranks of each place's factors; the others are padding."""
PARTS = (70, 16, 33)
INPUTS = 1100
"""More than a program goes through."""


def factors(dtype: torch.dtype, device: torch.device) -> LowRankFactors:
    generator = torch.Generator().manual_seed(1)
    down = torch.zeros(PLACES, len(PARTS), RANK, INPUTS)
    up = torch.zeros(PLACES, sum(PARTS), RANK)
    for place, rank in enumerate(RANKS):
        down[place, :, :rank] = torch.randn(len(PARTS), rank, INPUTS, generator=generator) / 33
        up[place, :, :rank] = torch.randn(sum(PARTS), rank, generator=generator)
    return LowRankFactors(
        down.flatten(1, 2).to(device, dtype),
        up.to(device, dtype),
        torch.tensor(RANKS, dtype=torch.int32, device=device),
        PARTS,
    )


def tiles(places: list[int], shape: MatmulTiles, device: torch.device) -> AdapterTiles:
    host = tiles_of(np.array(places), PLACES, shape)
    return host.on_device([torch.from_numpy(each).to(device) for each in host.arrays])


def added(
    x: Tensor, out: Tensor, own: LowRankFactors, places: list[int], shape: MatmulTiles
) -> Tensor:
    result = out.clone()
    add_low_rank(x, result, own, tiles(places, shape, x.device))
    return result


def wanted(x: Tensor, out: Tensor, own: LowRankFactors, places: list[int]) -> tuple[Tensor, Tensor]:
    """In float64; and the summands' sizes."""
    result, size_of = out.double(), out.double().abs()
    for row, place in enumerate(places):
        if place < 0:
            continue
        first = 0
        for part, size in enumerate(PARTS):
            down = own.down[place, part * RANK : (part + 1) * RANK].double()
            up = own.up[place, first : first + size].double()
            inner = down @ x[row].double()
            result[row, first : first + size] += up @ inner
            size_of[row, first : first + size] += up.abs() @ inner.abs()
            first += size
    return result, size_of


@pytest.mark.parametrize("shape", [LOW_RANK, LOW_RANK_MANY], ids=["few", "many"])
def test_each_row_has_its_own_adapter(
    shape: MatmulTiles, dtype: torch.dtype, device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(2)
    places = [2, -1, 1, 2, 0, 1, -1, *[2] * 17, 1]
    x = torch.randn(len(places), INPUTS, generator=generator).to(device, dtype)
    out = torch.randn(len(places), sum(PARTS), generator=generator).to(device, dtype)
    own = factors(dtype, device)
    found = added(x, out, own, places, shape)
    true, size = wanted(x, out, own, places)
    rounding = {torch.float32: 1e-5, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}[dtype]
    assert ((found.double() - true).abs() <= rounding * size).all()
    without = [row for row, place in enumerate(places) if place < 1]
    assert torch.equal(found[without], out[without])
    for rows in ([3], [8, 2, 9], list(reversed(range(len(places))))):
        again = added(x[rows], out[rows], own, [places[row] for row in rows], shape)
        assert torch.equal(again, found[rows])


def test_a_step_without_adapters_changes_nothing(device: torch.device) -> None:
    own = factors(torch.float32, device)
    out = torch.randn(3, sum(PARTS)).to(device)
    x = torch.randn(3, INPUTS).to(device)
    assert torch.equal(added(x, out, own, [-1, -1, -1], LOW_RANK), out)
