"""Products against float64, for every way of storing a matrix and every instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from penstock_kernels.cpu.matrix import MatrixKind, PackedMatrix, product
from tests.kernels.cpu import slow
from tests.kernels.cpu.sources import WAYS, WIDTH, Source, name_of, random_source

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("isa")]
every_way = pytest.mark.parametrize("way", WAYS, ids=name_of)


def activations(rows: int, inputs: int, seed: int = 1) -> np.ndarray:
    """Rows of very different sizes, one of zeros, single groups of zeros, and outliers."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, inputs)).astype(np.float32)
    x *= 10.0 ** rng.integers(-6, 6, (rows, 1))
    x[rng.random((rows, inputs)) < 0.01] *= 50
    if rows > 2:
        x[1] = 0
        x[2, : inputs // 2] = 0
    return x


def check(source: Source, packed: PackedMatrix, kind: MatrixKind | None, x: np.ndarray) -> None:
    weights = slow.weights_as(source, kind)
    for two_parts in (False, True):
        true, bound = slow.product(x, weights, MatrixKind(packed.struct.kind), two_parts)
        ours = product(x, packed, two_parts=two_parts)
        assert ours.shape == true.shape
        assert np.isfinite(ours).all()
        worst = (np.abs(ours - true) / bound).max()
        assert worst <= 1, (worst, two_parts)


@every_way
def test_two_parts_have_twice_as_many_bits(way: tuple[str, MatrixKind | None]) -> None:
    """Against activations that nobody has rounded."""
    format, kind = way
    inputs = max(WIDTH[format], 64)
    source = random_source(format, 40, inputs)
    packed = source.packed(kind=kind)
    x = np.random.default_rng(8).standard_normal((33, inputs)).astype(np.float32)
    true = x.astype(np.float64) @ slow.weights_as(source, kind).T
    one, two = (
        np.abs(product(x, packed, two_parts=two_parts) - true).max() for two_parts in (False, True)
    )
    assert two == one if packed.struct.kind == MatrixKind.F32 else two < one / 50


@every_way
@pytest.mark.parametrize(
    ("rows", "outputs", "width"), [(1, 48, 3), (7, 17, 1), (8, 1, 2), (9, 35, 5)]
)
def test_shapes(way: tuple[str, MatrixKind | None], rows: int, outputs: int, width: int) -> None:
    """width: in the format's units. Plain formats get lengths that no group divides."""
    format, kind = way
    unit = WIDTH[format]
    inputs = width * unit if unit > 1 else (1, 31, 100, 257)[width % 4]
    source = random_source(format, outputs, inputs)
    check(source, source.packed(kind=kind), kind, activations(rows, inputs))


@every_way
def test_4097_rows(way: tuple[str, MatrixKind | None]) -> None:
    format, kind = way
    inputs = max(WIDTH[format], 64)
    source = random_source(format, 33, inputs)
    check(source, source.packed(kind=kind, threads=2), kind, activations(4097, inputs))


@every_way
def test_bias_and_order(way: tuple[str, MatrixKind | None]) -> None:
    """The source's row r is output order[r]; the bias is in the order of outputs."""
    format, kind = way
    inputs = max(WIDTH[format], 64)
    source = random_source(format, 37, inputs)
    rng = np.random.default_rng(3)
    order = rng.permutation(37).astype(np.int32)
    bias = rng.standard_normal(37).astype(np.float32)
    x = activations(5, inputs)
    plain = product(x, source.packed(kind=kind))
    moved = np.empty_like(plain)
    moved[:, order] = plain
    assert np.array_equal(product(x, source.packed(kind=kind, order=order)), moved)
    both = product(x, source.packed(kind=kind, order=order, bias=bias))
    assert np.array_equal(both, moved + bias)


def test_no_rows() -> None:
    source = random_source("Q8_0", 5, 32)
    assert product(np.empty((0, 32), np.float32), source.packed()).shape == (0, 5)


@pytest.mark.parametrize("format", ["F32", "Q4_0"])
def test_input_that_is_not_contiguous(format: str) -> None:
    source = random_source(format, 20, 64)
    x = activations(6, 128)
    packed = source.packed()
    assert np.array_equal(product(x[::2, ::2], packed), product(x[::2, ::2].copy(), packed))


@every_way
def test_tiny_and_huge_values(way: tuple[str, MatrixKind | None]) -> None:
    """Peaks whose inverse overflows count as next to nothing; large ones don't overflow early."""
    format, kind = way
    inputs = max(WIDTH[format], 64)
    source = random_source(format, 16, inputs)
    packed = source.packed(kind=kind)
    tiny = product(activations(4, inputs) * np.float32(1e-42), packed)
    assert (np.abs(tiny) < 1e-30).all()
    x = np.zeros((2, inputs), np.float32)
    x[:, 3] = 1e37, -1e37
    huge = product(x, packed)
    true, _ = slow.product(x, slow.weights_as(source, kind), MatrixKind(packed.struct.kind))
    assert np.allclose(huge, true, rtol=1e-4, atol=1e33)


@pytest.mark.parametrize("format", ["Q4_0", "Q4_K", "Q5_K", "Q6_K"])
def test_inputs_of_one_size(format: str) -> None:
    """Levels of K-quants' inputs come to 1,023 in 16 at most on AVX-512, which these exceed."""
    source, rng = random_source(format, 40, 512), np.random.default_rng(9)
    x = rng.choice(np.float32([-1, 1]), (18, 512)) * rng.uniform(0.6, 1, (18, 512))
    x[:6, :256] = 0.7
    x[3:9, 40:60] *= 9
    x[::3] *= 1e33
    check(source, source.packed(), None, x.astype(np.float32))
