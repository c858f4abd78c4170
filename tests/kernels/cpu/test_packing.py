"""Packed weights are the checkpoint's own, value by value."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from penstock_kernels.cpu.matrix import PLAIN, MatrixKind, product
from tests.kernels.cpu import slow
from tests.kernels.cpu.sources import WAYS, WIDTH, name_of, random_source, source_of

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("isa")]


@pytest.mark.parametrize("way", WAYS, ids=name_of)
def test_rows_read_back_equal_the_gguf_package(way: tuple[str, MatrixKind | None]) -> None:
    """A row of 127 and zeros is exact as signed bytes, with a scale of 1: the product reads one
    weight of each output. It differs from 127 times the weight by float32's rounding alone, which
    is less than any bit of a level or a scale."""
    format, kind = way
    inputs = 2 * max(WIDTH[format], 32)
    source = random_source(format, 19, inputs, seed=5)
    units = 127 * np.eye(inputs, dtype=np.float32)
    read = product(units, source.packed(kind=kind)).T
    true = 127 * slow.weights_as(source, kind)
    if format == "F32" and kind is not MatrixKind.S8H:
        assert np.array_equal(read, true.astype(np.float32))
    # A weight is scale * level + minimum; either part can be larger than the weight.
    size = np.abs(true).reshape(19, -1, 32).max(-1).repeat(32, axis=1)
    assert (np.abs(read - true) <= 4 * size * 2.0**-24).all()


@pytest.mark.parametrize("format", PLAIN)
@pytest.mark.parametrize("kind", [MatrixKind.F32, MatrixKind.BF16, MatrixKind.S8H])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf], ids=str)
def test_weights_that_are_not_finite(format: str, kind: MatrixKind, poison: float) -> None:
    """They reach their output, and no other."""
    values = random_source("F32", 19, 70).values
    values[4, 33] = poison
    with np.errstate(invalid="ignore"):
        data = gguf.quants.quantize(values, gguf.GGMLQuantizationType[format])
    x = np.random.default_rng(0).standard_normal((3, 70)).astype(np.float32)
    finite = np.isfinite(product(x, source_of(format, data, 19, 70).packed(kind=kind)))
    assert not finite[:, 4].any()
    assert finite[:, np.arange(19) != 4].all()
