"""A row's bits depend on that row alone: not on its place, its neighbours or their number."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from penstock_kernels import reference
from penstock_kernels.reference import encoder
from penstock_kernels.reference.activations import gated_activation, plain_activation

# The package's `linear` is the function.
linear_module = sys.modules["penstock_kernels.reference.linear"]

ODD_SIZES = [1, 7, 33, 64, 576, 577, 1536]
ROW_COUNTS = [1, 2, 7, 15, 16, 17, 33, 64, 100]


def rows_of(count: int, *size: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, *size, generator=generator).to(dtype)


def check_rows(op: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """op over all of x equals op over each stretch of x, wherever the stretch lies."""
    whole = op(x)
    for count in ROW_COUNTS:
        for start in {0, 1, x.shape[0] - count}:
            part = op(x[start : start + count])
            assert torch.equal(part, whole[start : start + count]), (count, start)
    backwards = op(x.flip(0))
    assert torch.equal(backwards.flip(0), whole)
    loud = x * 100
    loud[5] = x[5]
    assert torch.equal(op(loud)[5], whole[5])


@pytest.mark.timeout(240)
@pytest.mark.parametrize("outputs", [1, 33, 960, 4097])
@pytest.mark.parametrize("inputs", [1, 33, 64, 577])
def test_linear(inputs: int, outputs: int, dtype: torch.dtype, threads: int) -> None:
    weight = rows_of(outputs, inputs, dtype=dtype)
    bias = rows_of(1, outputs, dtype=dtype)[0]
    check_rows(lambda x: reference.linear(x, weight, bias), rows_of(101, inputs, dtype=dtype))


@pytest.mark.timeout(240)
def test_linear_of_bfloat16_is_rounded_once(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """Whatever the processor can do: columns in several blocks, and in a narrow last one."""
    monkeypatch.setattr(linear_module, "multiplies_bfloat16", lambda: False)
    monkeypatch.setattr(linear_module, "WIDENED_BLOCK", 96)
    weight = rows_of(203, 577, dtype=torch.bfloat16)
    x = rows_of(101, 577, dtype=torch.bfloat16)
    found = reference.linear(x, weight)
    exact = x.double() @ weight.double().t()
    assert found.dtype == torch.bfloat16
    # Half a unit of 8 bits, and what a float32 sum may be off.
    assert torch.all((found.double() - exact).abs() <= exact.abs() * 2.0**-8 + 1e-4)
    check_rows(lambda rows: reference.linear(rows, weight), x)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("inputs", "outputs"), [(35, 45), (384, 96), (577, 1536), (3072, 2048)])
def test_encoders_products(inputs: int, outputs: int, threads: int) -> None:
    """A row's at each place of a tile. Of long rows, MKL takes the tile's rows in several parts."""
    weight = encoder.lane_padded(rows_of(outputs, inputs, dtype=torch.float32))
    bias = rows_of(1, weight.shape[0], dtype=torch.float32)[0]
    x = encoder.pad_tiles(rows_of(2 * encoder.ENCODER_TILE - 5, inputs, dtype=torch.float32))
    found = encoder.tiled_linear(x, weight, bias)
    for turn in range(1, encoder.ENCODER_TILE):
        turned = encoder.tiled_linear(x.roll(turn, 0), weight, bias)
        assert torch.equal(turned.roll(-turn, 0), found), turn


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("size", [35, 1536])
def test_encoders_activations(kind: str, size: int) -> None:
    """7 threads: their shares of an array end where no vector does."""
    tile = encoder.ENCODER_TILE
    before = torch.get_num_threads()
    torch.set_num_threads(7)
    try:
        x = rows_of(8 * tile, size, dtype=torch.float32)
        whole = encoder.activate(x, kind)
        for row in range(0, len(x), tile):
            alone = encoder.activate(x[row : row + tile].clone(), kind)
            assert torch.equal(alone, whole[row : row + tile]), row
    finally:
        torch.set_num_threads(before)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("size", ODD_SIZES)
def test_rms_norm(size: int, dtype: torch.dtype, threads: int) -> None:
    weight = rows_of(1, size, dtype=dtype)[0]
    check_rows(lambda x: reference.rms_norm(x, weight, 1e-5), rows_of(101, size, dtype=dtype))


@pytest.mark.timeout(240)
def test_rms_norm_of_heads(dtype: torch.dtype, threads: int) -> None:
    weight = rows_of(1, 24, dtype=dtype)[0]
    check_rows(lambda x: reference.rms_norm(x, weight, 1e-5), rows_of(101, 5, 24, dtype=dtype))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh", "quick_gelu", "relu2"])
@pytest.mark.parametrize("size", ODD_SIZES)
def test_activations(size: int, kind: str, dtype: torch.dtype, threads: int) -> None:
    """With a gate, whose rows don't lie one behind another, and without."""
    x = rows_of(101, 2 * size, dtype=dtype)
    check_rows(lambda rows: gated_activation(rows, kind), x)
    check_rows(lambda rows: plain_activation(rows, kind), x)


@pytest.mark.parametrize("size", ODD_SIZES[3:])
def test_sparse_gate(size: int, dtype: torch.dtype, threads: int) -> None:
    check_rows(lambda x: reference.sparse_gate(x, 0.9), rows_of(101, 2 * size, dtype=dtype))


@pytest.mark.parametrize("size", ODD_SIZES)
def test_row_mean(size: int, dtype: torch.dtype, threads: int) -> None:
    check_rows(reference.row_mean, rows_of(101, size, dtype=dtype))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("head_dim", [2, 24, 64, 66])
def test_rope(head_dim: int, dtype: torch.dtype, threads: int) -> None:
    frequencies = reference.inverse_frequencies(head_dim, 10_000.0)
    cos, sin = reference.rope_table(frequencies, 300)
    long_cos, long_sin = reference.rope_table(frequencies, 1111)
    assert torch.equal(cos, long_cos[:300])
    assert torch.equal(sin, long_sin[:300])
    x = rows_of(300, 3, head_dim, dtype=dtype)
    whole = reference.apply_rope(x, cos, sin)
    for start, count in ((0, 1), (1, 1), (7, 33), (299, 1), (100, 200)):
        some = slice(start, start + count)
        assert torch.equal(reference.apply_rope(x[some], cos[some], sin[some]), whole[some])


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ["exp"])
def test_exp_has_no_tail(name: str, threads: int) -> None:
    """What silu_mul and attention rely on: an element's exp doesn't depend on its place."""
    x = rows_of(1, 70_000, dtype=torch.float32)[0] * 5
    whole = torch.exp(x)
    for start in (0, 1, 3, 16, 17):
        for count in (*range(1, 140), 2047, 2049, 5121, 32769, 65537):
            part = slice(start, start + count)
            assert torch.equal(torch.exp(x[part].clone()), whole[part]), (start, count)
