"""The interpreter's product for these tests, against sums that are written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from tests.interpreted_triton import DEVICE
from tests.ordered_product import ordered_product


def written_out(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    out = np.zeros((left.shape[0], right.shape[1]), np.float32)
    for i, j in np.ndindex(out.shape):
        total = left[i, 0] * right[0, j]
        for k in range(1, left.shape[1]):
            total = total + left[i, k] * right[k, j]
        out[i, j] = total
    return out


def layouts(x: NDArray[Any]) -> list[NDArray[Any]]:
    """The array's values in other places of memory."""
    wide = np.zeros((x.shape[0] * 2, x.shape[1] * 3), x.dtype)
    wide[1::2, ::3] = x
    return [x, np.asfortranarray(x), wide[1::2, ::3]]


@pytest.mark.parametrize("shape", [(16, 16, 16), (5, 33, 7), (1, 129, 1), (1, 1, 3), (17, 64, 2)])
def test_each_element_is_a_sum_in_order_whatever_the_layout(shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    draw = np.random.default_rng(rows * inner)
    left = draw.normal(size=(rows, inner)).astype(np.float32)
    right = draw.normal(size=(inner, columns)).astype(np.float32)
    expected = written_out(left, right)
    for one in layouts(left):
        for other in layouts(right):
            assert np.array_equal(ordered_product(one, other, np.float32), expected)
    batch = ordered_product(np.stack([left, left * 2]), np.stack([right] * 2), np.float32)
    assert np.array_equal(batch, [expected, expected * 2])


@pytest.mark.parametrize("poison", [None, np.nan, np.inf])
def test_tiles_that_are_filled_up_with_zeros(poison: float | None) -> None:
    """What isn't finite makes sums of zeros that which they are on a GPU: no numbers."""
    draw = np.random.default_rng(3)
    left, right = np.zeros((64, 40), np.float32), np.zeros((40, 64), np.float32)
    left[5:8, :33] = draw.normal(size=(3, 33))
    right[:, 10:30] = draw.normal(size=(40, 20))
    if poison is not None:
        left[6, 3], right[35, 20] = poison, poison
    with np.errstate(invalid="ignore"):
        expected, found = written_out(left, right), ordered_product(left, right, np.float32)
    assert np.array_equal(found, expected, equal_nan=True)
    assert np.isnan(expected).any() == (poison is not None)


@triton.jit
def _dot(left, right, out, SIZE: tl.constexpr):
    place = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    start = tl.full([SIZE, SIZE], 1.0, tl.float32)
    tl.store(out + place, tl.dot(tl.load(left + place), tl.load(right + place), start))


@pytest.mark.skipif(DEVICE.type != "cpu", reason="a GPU has products of its own")
def test_the_interpreter_multiplies_so() -> None:
    # Launched directly it would be compiled: TRITON_INTERPRET was set for other imports only.
    from triton.runtime.interpreter import InterpretedFunction

    draw = torch.Generator().manual_seed(5)
    left, right = torch.randn((2, 64, 64), generator=draw)
    out = torch.empty_like(left)
    InterpretedFunction(_dot.fn)[(1,)](left, right, out, 64)
    assert np.array_equal(out.numpy(), written_out(left.numpy(), right.numpy()) + 1)
