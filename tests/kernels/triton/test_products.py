"""Matrix products against float64, and a row's bits in any company."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from penstock_kernels.triton.linear import dense
from penstock_kernels.triton.linear.dense import linear
from penstock_kernels.triton.linear.fp8_linear import fp8_linear, quantise_fp8
from penstock_kernels.triton.linear.weight_only import (
    PackedWeights,
    pack,
    pack_nibbles,
    weight_only_linear,
)
from penstock_kernels.triton.matmul_tiles import (
    INVARIANT,
    INVARIANT_FEW,
    INVARIANT_LARGE,
    INVARIANT_MANY,
    INVARIANT_NARROW,
    INVARIANT_SQUARE,
    INVARIANT_TALL,
    cache_cost,
    invariant_tiles,
)

pytestmark = pytest.mark.timeout(300)

ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def check(ours: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """One rounding to the dtype, and float32 sums: 1e-6 of the sum of magnitudes."""
    wide, matrix = x.double(), weight.double()
    wanted, size = wide @ matrix.T, wide.abs() @ matrix.abs().T
    if bias is not None:
        wanted, size = wanted + bias.double(), size + bias.double().abs()
    far = (ours.cpu().double() - wanted).abs()
    assert (far <= wanted.abs() * ROUNDING[ours.dtype] + size * 1e-6).all(), far.max()


def check_rows(op: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Each row's bits alone, in other company and at another place."""
    whole = op(x)
    for start, count in ((0, 1), (len(x) - 1, 1), (2, 5), (1, len(x) - 1)):
        assert torch.equal(op(x[start : start + count]), whole[start : start + count]), start
    assert torch.equal(op(x.flip(0)).flip(0), whole)


@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (65, 130)])
def test_linear(outputs: int, inputs: int, dtype: torch.dtype, device: torch.device) -> None:
    x, weight = drawn(1, 67, inputs).to(dtype), drawn(2, outputs, inputs).to(dtype)
    bias = drawn(3, outputs).to(dtype)
    there = weight.to(device), bias.to(device)
    check(linear(x.to(device), *there), x, weight, bias)
    check_rows(lambda rows: linear(rows, *there), x.to(device))


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16], ids=str)
def test_batch_invariant_tiles_give_the_same_bits(
    narrow: torch.dtype, device: torch.device
) -> None:
    """Tiles are full, or partly empty; on a GPU, the matrix is one of an 8B model."""
    rows, outputs, inputs = (300, 4096, 4096) if device.type == "cuda" else (130, 70, 200)
    x, weight = drawn(1, rows, inputs).to(narrow), drawn(2, outputs, inputs).to(narrow)
    there = x.to(device), weight.to(device), drawn(3, outputs).to(narrow).to(device)
    for first in (False, True):
        usual = linear(*there, tiles=INVARIANT, weights_first=first)
        check(usual, x, weight, drawn(3, outputs).to(narrow))
        for tiles in (*INVARIANT_FEW, *INVARIANT_MANY) if first else INVARIANT_MANY:
            assert tiles.inner == INVARIANT.inner
            assert torch.equal(linear(*there, tiles=tiles, weights_first=first), usual)


def test_which_operand_is_first_depends_on_the_matrix_alone(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of tensor cores' products, a left operand with fewer than 64 rows would be another
    instruction's: where rows are on the left, no tile has fewer, and otherwise none has fewer
    columns."""
    launched: list[tuple[bool, int]] = []
    monkeypatch.setattr(
        dense,
        "launch",
        lambda *_, tiles, WEIGHTS_FIRST, **__: launched.append(
            (WEIGHTS_FIRST, tiles.columns if WEIGHTS_FIRST else tiles.rows)
        ),
    )
    for outputs in (64, 4096, 8127, 8129, 28_672):
        launched.clear()
        weight = torch.zeros(outputs, 1).bfloat16()
        for rows in (1, 16, 17, 32, 33, 64, 65, 100, 256, 512, 3000):
            linear(torch.zeros(rows, 1).bfloat16(), weight)
        assert {first for first, _ in launched} == {outputs > 127 * 64}
        assert min(left for _, left in launched) >= 64


def test_batch_invariant_tiles_by_size() -> None:
    """Each has its rows; between two limits lies a power of two, so that it is rehearsed."""
    assert invariant_tiles(1, 4096, narrow=True) == INVARIANT_NARROW
    assert invariant_tiles(64, 151_936, narrow=True) == INVARIANT
    for tiles in INVARIANT_FEW:
        assert invariant_tiles(tiles.rows, 151_936, narrow=True) == tiles
    assert invariant_tiles(1, 151_936, narrow=False) == INVARIANT
    assert invariant_tiles(8192, 4096, narrow=True) == INVARIANT_LARGE
    assert invariant_tiles(8192, 4096, narrow=False) == INVARIANT
    for rows, tiles in ((256, INVARIANT_TALL), (512, INVARIANT_SQUARE), (1024, INVARIANT_LARGE)):
        assert invariant_tiles(rows, 4096, narrow=True) == tiles
        assert invariant_tiles(rows - 99, 4096, narrow=True) == tiles
        assert tiles.programs(rows, 4096) == 128, "nearly all processors have one"
    assert invariant_tiles(128, 24_576, narrow=True) == INVARIANT_LARGE
    for outputs in (64, 128, 1024, 4096, 6144, 14_336, 28_672, 151_936):
        rehearsed = {invariant_tiles(1 << power, outputs, narrow=True) for power in range(15)}
        met = {invariant_tiles(rows, outputs, narrow=True) for rows in range(1, 1 << 14, 7)}
        assert met <= rehearsed


@pytest.mark.parametrize(
    ("rows", "outputs", "before", "now"),
    [(128, 24_576, 98_304, 36_864), (256, 4096, 32_768, 24_576), (512, 4096, 65_536, 32_768)],
)
def test_larger_tiles_take_less_from_the_cache(
    rows: int, outputs: int, before: int, now: int
) -> None:
    """Numbers for each input: a tile's rows and columns, times the programs. Those before had
    64 x 64. What is gained isn't lost again by processors that have no work."""
    tiles = invariant_tiles(rows, outputs, narrow=True)
    assert INVARIANT.programs(rows, outputs) * (64 + 64) == before
    assert tiles.programs(rows, outputs) * (tiles.rows + tiles.columns) == now
    assert cache_cost(tiles, rows, outputs) <= 0.8 * cache_cost(INVARIANT, rows, outputs)


def unpacked(weights: PackedWeights) -> Tensor:
    """The weights' true values, by other means than the kernel's."""
    if weights.bits == 8:
        levels = weights.levels.double().unflatten(1, (-1, weights.group))
    else:
        halves = weights.levels.unflatten(1, (-1, weights.group // 2)).long()
        levels = torch.cat((halves % 16, halves // 16), -1).double()
    zeros = 0 if weights.bits == 8 else 8
    if weights.zeros is not None:
        zeros = weights.zeros.double()[..., None]
    return ((levels - zeros) * weights.scales.double()[..., None]).flatten(1)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 128])
def test_weight_only(bits: int, group: int, dtype: torch.dtype, device: torch.device) -> None:
    original = drawn(5, 70, 256)
    packed = pack(original, bits=bits, group=group)
    assert (unpacked(packed) - original).abs().max() < (0.35 if bits == 4 else 0.02)
    x, bias = drawn(6, 19, 256).to(dtype), drawn(7, 70).to(dtype)
    there = PackedWeights(packed.levels.to(device), packed.scales.to(device), None, bits, group)
    for invariant in (False, True):
        ours = weight_only_linear(x.to(device), there, bias.to(device), batch_invariant=invariant)
        check(ours, x, unpacked(packed), bias)
    check_rows(lambda rows: weight_only_linear(rows, there, batch_invariant=True), x.to(device))


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_with_zeros(bits: int, device: torch.device) -> None:
    """AWQ and GPTQ have such weights; every level occurs."""
    generator = torch.Generator().manual_seed(1)
    low, high = (0, 16) if bits == 4 else (-128, 128)
    levels = torch.randint(low, high, (16, 64), generator=generator)
    zeros = torch.randint(low, high, (16, 2), generator=generator).float()
    scales = torch.rand(16, 2, generator=generator)
    stored = pack_nibbles(levels, 32) if bits == 4 else levels.to(torch.int8)
    packed = PackedWeights(stored, scales, zeros, bits, 32)
    weight = (levels.double().unflatten(1, (2, 32)) - zeros.double()[..., None]) * scales[..., None]
    assert torch.equal(unpacked(packed), weight.flatten(1))
    x = drawn(2, 3, 64).to(torch.bfloat16)
    there = PackedWeights(stored.to(device), scales.to(device), zeros.to(device), bits, 32)
    check(weight_only_linear(x.to(device), there), x, weight.flatten(1))


def test_groups_that_do_not_fit() -> None:
    for weight, bits, group in ((96, 4, 64), (64, 4, 16), (64, 3, 32)):
        with pytest.raises(ValueError, match="must be"):
            pack(torch.zeros(2, weight), bits=bits, group=group)


def test_fp8_rows(device: torch.device) -> None:
    x = drawn(1, 4, 100) * 1000
    x[1], x[2, 3] = 0, 1e30
    levels, scales = quantise_fp8(x.to(device))
    wanted = (x / scales.cpu()[:, None]).to(torch.float8_e4m3fn)
    assert torch.equal(levels.cpu().float(), wanted.float())
    far = (levels.cpu().float() * scales.cpu()[:, None] - x).abs()
    assert (far <= x.abs().amax(1, keepdim=True) / 16).all()


@pytest.mark.parametrize(("outputs", "inputs"), [(70, 160)])
def test_fp8_linear(outputs: int, inputs: int, device: torch.device) -> None:
    """Against float64 over the rounded operands; a tensor core adds FP8 products in 14 bits."""
    x = drawn(1, 66, inputs).to(torch.bfloat16)
    levels, scales = quantise_fp8(drawn(2, outputs, inputs).to(device))
    bias = drawn(3, outputs).to(torch.bfloat16)
    ours = fp8_linear(x.to(device), levels, scales, bias.to(device))
    rounded, own = quantise_fp8(x.to(device))
    wide = rounded.cpu().double() * own.cpu().double()[:, None]
    matrix = levels.cpu().double() * scales.cpu().double()[:, None]
    wanted, size = wide @ matrix.T + bias.double(), wide.abs() @ matrix.abs().T
    far = (ours.cpu().double() - wanted).abs()
    assert (far <= wanted.abs() * 2.0**-8 + size * 2.0**-12).all()
    check_rows(lambda rows: fp8_linear(rows, levels, scales), x.to(device))
