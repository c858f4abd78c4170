"""What adapters add to products of experts, against float64, and a row's bits in any company."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from penstock_kernels.triton.experts.low_rank import FactorsOfExperts, add_low_rank_experts
from penstock_kernels.triton.experts.placing import place_rows

PLACES, EXPERTS, RANK, ACTIVE = 3, 4, 48, 2
PARTS = (70, 33)
INPUTS = 1100
"""More than a program goes through."""


def factors(dtype: torch.dtype, device: torch.device) -> FactorsOfExperts:
    """Not each place has something for each expert."""
    generator = torch.Generator().manual_seed(1)
    outputs = sum(PARTS)
    ranks = torch.tensor([[0, 5, 48, 0], [48, 0, 16, 3], [0, 0, 0, 0]], dtype=torch.int32)
    down = torch.zeros(PLACES, EXPERTS, len(PARTS), RANK, INPUTS)
    up = torch.zeros(PLACES, EXPERTS, outputs, RANK)
    gains = torch.ones(PLACES, EXPERTS, 2, outputs)
    gains[:, :, 1] = 0
    for place in range(PLACES):
        for expert in range(EXPERTS):
            rank = int(ranks[place, expert])
            own = torch.randn(len(PARTS), rank, INPUTS, generator=generator)
            down[place, expert, :, :rank] = own / 33
            up[place, expert, :, :rank] = torch.randn(outputs, rank, generator=generator)
    gains[1] = torch.rand(EXPERTS, 2, outputs, generator=generator)
    return FactorsOfExperts(
        down.flatten(2, 3).to(device, dtype),
        up.to(device, dtype),
        ranks.to(device),
        PARTS,
        gains.to(device),
    )


def added(
    x: Tensor, out: Tensor, own: FactorsOfExperts, places: list[int], chosen: Tensor, rows: int = 16
) -> Tensor:
    result = out.clone()
    of_row = torch.tensor(places, dtype=torch.int32, device=x.device)
    add_low_rank_experts(x, result, own, place_rows(chosen, EXPERTS, rows), of_row)
    return result


def wanted(
    x: Tensor, out: Tensor, own: FactorsOfExperts, places: list[int], chosen: Tensor
) -> tuple[Tensor, Tensor]:
    """In float64; and the summands' sizes."""
    result, size_of = out.double(), out.double().abs()
    for pair, expert in enumerate(chosen.flatten().tolist()):
        place = places[pair // ACTIVE]
        if place < 0 or not own.ranks[place, expert]:
            continue
        row, first = x[pair * len(x) // len(out)].double(), 0
        gain, more = own.gains[place, expert].double()
        result[pair] = result[pair] * gain + more
        size_of[pair] = size_of[pair] * gain + more
        for part, size in enumerate(PARTS):
            down = own.down[place, expert, part * RANK : (part + 1) * RANK].double()
            up = own.up[place, expert, first : first + size].double()
            result[pair, first : first + size] += up @ (down @ row)
            size_of[pair, first : first + size] += up.abs() @ (down @ row).abs()
            first += size
    return result, size_of


@pytest.mark.parametrize("each", [False, True], ids=["of-rows", "of-pairs"])
def test_each_row_has_its_own_adapter(
    dtype: torch.dtype, device: torch.device, *, each: bool
) -> None:
    generator = torch.Generator().manual_seed(2)
    places = [1, -1, 0, 1, 2, 0, -1, *[1] * 15, 0]
    rows = len(places)
    chosen = torch.rand(rows, EXPERTS, generator=generator).topk(ACTIVE).indices.sort().values
    chosen = chosen.to(device, torch.int32)
    count = rows * ACTIVE if each else rows
    x = torch.randn(count, INPUTS, generator=generator).to(device, dtype)
    out = torch.randn(rows * ACTIVE, sum(PARTS), generator=generator).to(device, dtype)
    own = factors(dtype, device)
    found = added(x, out, own, places, chosen)
    true, size = wanted(x, out, own, places, chosen)
    rounding = {torch.float32: 1e-5, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}[dtype]
    assert ((found.double() - true).abs() <= rounding * size).all()
    for row, place in enumerate(places):
        if place < 0:
            pairs = slice(row * ACTIVE, row * ACTIVE + ACTIVE)
            assert torch.equal(found[pairs], out[pairs])
    for height in (64, 128):
        assert torch.equal(added(x, out, own, places, chosen, height), found)
    for some in ([3], [8, 2, 9, 22], list(reversed(range(rows)))):
        pairs = [row * ACTIVE + at for row in some for at in range(ACTIVE)]
        again = added(
            x[pairs if each else some], out[pairs], own, [places[row] for row in some], chosen[some]
        )
        assert torch.equal(again, found[pairs])
