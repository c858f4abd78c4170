"""A row's result is its own: the same bits in any company, and no poison from a neighbour."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from penstock_kernels.cpu import matrix
from penstock_kernels.cpu.matrix import MatrixKind, product
from penstock_kernels.cpu.memory import Scratch
from tests.kernels.cpu.sources import WAYS, WIDTH, name_of, random_source, source_of

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("isa")]
every_way = pytest.mark.parametrize("way", WAYS, ids=name_of)


def bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.uint32)


@every_way
@pytest.mark.parametrize("two_parts", [False, True])
def test_alone_and_in_company(way: tuple[str, MatrixKind | None], two_parts: bool) -> None:
    format, kind = way
    product = partial(matrix.product, two_parts=two_parts)
    inputs = 3 * WIDTH[format] if WIDTH[format] > 1 else 75
    packed = random_source(format, 50, inputs).packed(kind=kind)
    x = np.random.default_rng(2).standard_normal((35, inputs)).astype(np.float32)
    together = bits(product(x, packed))
    assert np.array_equal(bits(product(x, packed, threads=2)), together)
    scratch = Scratch()
    for row in range(len(x)):
        assert np.array_equal(
            bits(product(x[row : row + 1], packed, scratch=scratch))[0], together[row]
        )
    for size in range(2, 18, 3):
        for start in (0, 5, len(x) - size):
            part = slice(start, start + size)
            ours = bits(product(x[part], packed, threads=1 + size % 2, scratch=scratch))
            assert np.array_equal(ours, together[part]), (start, size)


@pytest.mark.parametrize("two_parts", [False, True])
@pytest.mark.parametrize("outputs", [21, 40])
@pytest.mark.parametrize("format", ["Q4_1", "Q4_K", "Q5_K", "Q6_K", "BF16"])
def test_many_rows_of_even_and_odd_tiles(format: str, outputs: int, two_parts: bool) -> None:
    """AMX multiplies 16 rows by two tiles, or 32 by one, from 24 rows on, at most 128."""
    product = partial(matrix.product, two_parts=two_parts)
    bias = np.random.default_rng(outputs).standard_normal(outputs).astype(np.float32)
    packed = random_source(format, outputs, 512).packed(bias=bias)
    rng = np.random.default_rng(7)
    x = rng.standard_normal((261, 512)).astype(np.float32)
    # Some rows, and both super-groups of some, have numbers for which one scale is too coarse.
    x[rng.random(x.shape) < 0.002] *= 50
    alone = np.concatenate([bits(product(row[None], packed)) for row in x])
    for rows in (24, 31, 32, 33, 47, 64, 65, 127, 128, 129, 144, 255, 261):
        assert np.array_equal(bits(product(x[:rows], packed, threads=2)), alone[:rows]), rows


LARGEST = {
    "Q4_K": np.float16([1, 1]).tobytes() + b"\xff" * 140,
    "Q5_K": np.float16([1, 1]).tobytes() + b"\xff" * 172,
    "Q6_K": b"\x00" * 192 + b"\x80" * 16 + np.float16([1]).tobytes(),
}
"""Blocks whose weights are as large as they can be."""


@pytest.mark.parametrize("format", LARGEST)
def test_the_largest_sums_of_super_groups(format: str) -> None:
    """They are whole numbers of 32 bits on AMX and AVX-512, there of 16 bits within a group."""
    source = source_of(format, np.frombuffer(LARGEST[format] * 2 * 21, np.uint8), 21, 512)
    packed = source.packed()
    for level in (-127, 127):
        x = np.full((40, 512), level, dtype=np.float32)
        ours, true = product(x, packed), x.astype(np.float64) @ source.values.T.astype(np.float64)
        assert np.allclose(ours, true, rtol=1e-5)
        assert np.array_equal(bits(product(x[:1], packed))[0], bits(ours)[39])
    # As large as the sum of levels of 16 inputs can be there.
    x = np.tile(np.float32([127, 70, *[59] * 14]), (3, 32)) * np.float32([[1], [-1], [0.5]])
    assert np.allclose(product(x, packed), x.astype(np.float64) @ source.values.T, rtol=1e-5)


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "BF16", "F32"])
def test_among_4097_rows(kind: str) -> None:
    packed = random_source(kind, 40, 256).packed()
    x = np.random.default_rng(4).standard_normal((4097, 256)).astype(np.float32)
    together = bits(product(x, packed, threads=2))
    for row in (0, 7, 8, 2047, 2048, 2049, 4095, 4096):
        assert np.array_equal(bits(product(x[row : row + 1], packed))[0], together[row])
    assert np.array_equal(bits(product(x[::-1], packed))[::-1], together)


@every_way
@pytest.mark.parametrize("two_parts", [False, True])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf], ids=str)
def test_poison(way: tuple[str, MatrixKind | None], poison: float, two_parts: bool) -> None:
    """NaN or infinity in a row reaches all of its outputs, and no other row."""
    format, kind = way
    product = partial(matrix.product, two_parts=two_parts)
    inputs = 2 * WIDTH[format] if WIDTH[format] > 1 else 75
    packed = random_source(format, 50, inputs).packed(kind=kind)
    clean = np.random.default_rng(6).standard_normal((11, inputs)).astype(np.float32)
    expected = bits(product(clean, packed))
    for row, column in ((0, 0), (4, inputs // 2), (10, inputs - 1)):
        x = clean.copy()
        x[row, column] = poison
        ours = product(x, packed)
        assert not np.isfinite(ours[row]).any()
        others = np.arange(11) != row
        assert np.array_equal(bits(ours[others]), expected[others])
