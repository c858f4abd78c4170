"""Experts whose weights are FP8 with scales, against the same weights in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from penstock_kernels.triton.experts.fp8_products import expert_fp8
from penstock_kernels.triton.experts.placing import place_rows
from penstock_kernels.triton.matmul_tiles import (
    EXPERTS,
    EXPERTS_FEW,
    EXPERTS_FP8,
    EXPERTS_MANY,
    MatmulTiles,
)
from tests.kernels.triton.test_experts import ROUNDING, choices, drawn

pytestmark = pytest.mark.timeout(300)

EXPERT_COUNT, OUTPUTS, INPUTS, ACTIVE = 4, 70, 290, 2
GROUPS = {"one scale per output": 1, "one per 128 inputs": 3}
groups = pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)


def weights(groups: int, outputs: int = OUTPUTS, inputs: int = INPUTS) -> tuple[Tensor, Tensor]:
    """Levels, among them the smallest and the largest that FP8 has, and scales of several
    magnitudes."""
    levels = (drawn(1, EXPERT_COUNT, outputs, inputs) * 30).clamp(-448, 448)
    levels[:, 0, :3] = torch.tensor([2.0**-9, -448.0, 3 * 2.0**-9])
    scales = drawn(2, EXPERT_COUNT, outputs, groups).exp() / 30
    return levels.to(torch.float8_e4m3fn), scales


def meant(levels: Tensor, scales: Tensor) -> Tensor:
    wide = scales.double().repeat_interleave(128 if scales.shape[2] > 1 else levels.shape[2], 2)
    return levels.double() * wide[:, :, : levels.shape[2]]


@groups
@pytest.mark.parametrize("tiles", EXPERTS_FP8.values(), ids=str)
def test_products_with_fp8(
    tiles: MatmulTiles, groups: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Several pairs share rows, and each pair has a row of its own. Neither weights nor rows are
    rounded."""
    levels, scales = weights(groups)
    bias = drawn(3, EXPERT_COUNT, OUTPUTS)
    chosen = choices(4, 37, ACTIVE, EXPERT_COUNT, device)
    placed = place_rows(chosen, EXPERT_COUNT, tiles.rows)
    number = chosen.flatten().long().cpu()
    matrix = meant(levels, scales)[number]
    there = levels.to(device), scales.to(device)
    for rows in (37, 37 * ACTIVE):
        x = drawn(5, rows, INPUTS).to(dtype)
        ours = expert_fp8(x.to(device), *there, placed, bias.to(device), tiles=tiles)
        assert ours.dtype == dtype
        each = x.double() if rows > 37 else x.double().repeat_interleave(ACTIVE, 0)
        wanted = torch.einsum("pi,poi->po", each, matrix) + bias.double()[number]
        size = torch.einsum("pi,poi->po", each.abs(), matrix.abs()) + 1
        far = (ours.cpu().double() - wanted).abs()
        assert (far <= wanted.abs() * ROUNDING[dtype] + size * 1e-6).all(), far.max()


@groups
def test_a_row_has_the_same_bits_alone_and_among_others(
    groups: int, dtype: torch.dtype, device: torch.device
) -> None:
    """At another place, too; so many rows that an expert has several tiles."""
    levels, scales = (each.to(device) for each in weights(groups))
    x = drawn(5, 45, INPUTS).to(dtype).to(device)
    chosen = choices(4, 45, ACTIVE, EXPERT_COUNT, device)

    def compute(rows: Tensor) -> Tensor:
        placed = place_rows(chosen[rows], EXPERT_COUNT, EXPERTS_FEW.rows)
        tiles = EXPERTS_FP8[EXPERTS_FEW.rows]
        found = expert_fp8(x[rows], levels, scales, placed, tiles=tiles)
        return found.view(-1, ACTIVE, OUTPUTS)

    every = torch.arange(45, device=device)
    whole = compute(every)
    assert whole.isfinite().all()
    for some in (every[:1], every[44:], every[3:9], every.flip(0)):
        assert torch.equal(compute(some), whole[some])


@groups
@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16], ids=str)
def test_all_tiles_of_fp8_give_the_same_bits(
    narrow: torch.dtype, groups: int, device: torch.device
) -> None:
    """On a GPU they are as wide as a large model's experts are."""
    outputs, inputs = (1536, 2048) if device.type == "cuda" else (OUTPUTS, INPUTS)
    groups = groups if groups == 1 else -(-inputs // 128)
    levels, scales = (each.to(device) for each in weights(groups, outputs, inputs))
    x = drawn(5, 37, inputs).to(narrow).to(device)
    chosen = choices(4, 37, ACTIVE, EXPERT_COUNT, device)
    found = [
        expert_fp8(x, levels, scales, place_rows(chosen, EXPERT_COUNT, rows), tiles=tiles)
        for rows, tiles in EXPERTS_FP8.items()
    ]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_there_are_tiles_for_every_number_of_rows() -> None:
    for plain in (EXPERTS_FEW, EXPERTS, EXPERTS_MANY):
        assert EXPERTS_FP8[plain.rows].rows == plain.rows


def test_tiles_that_straddle_block_scales_are_refused(device: torch.device) -> None:
    levels, scales = (each.to(device) for each in weights(3))
    placed = place_rows(choices(4, 2, ACTIVE, EXPERT_COUNT, device), EXPERT_COUNT, EXPERTS.rows)
    with pytest.raises(ValueError, match="64 inputs; with block scales 128"):
        expert_fp8(torch.zeros(2, INPUTS, device=device), levels, scales, placed, tiles=EXPERTS)
