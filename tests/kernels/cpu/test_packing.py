"""Packed weights are the checkpoint's own, value by value."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from penstock_kernels.cpu.matrix import (
    LEVELS_BLOCK,
    PLAIN,
    MatrixKind,
    pack_blocks,
    pack_floats,
    pack_levels,
    product,
)
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


SIGNED = (MatrixKind.S8H, MatrixKind.S8W16)
HALVES = (MatrixKind.S8W16, MatrixKind.U4W16)
LEVEL_KINDS = [kind for kind in MatrixKind if MatrixKind.U4H <= kind <= MatrixKind.U4W16]
"""The kinds that pack_levels makes; the others are for GGUF types only."""


@pytest.mark.parametrize("kind", LEVEL_KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("inputs", [96, 70])
def test_levels_read_back(kind: MatrixKind, inputs: int) -> None:
    """Scales and minima are small whole numbers, which float16 holds: nothing is rounded. What lies
    beyond the inputs counts for nothing."""
    rng = np.random.default_rng(3)
    blocks = np.zeros((19, 3), LEVELS_BLOCK)
    blocks["scales"], blocks["minima"] = rng.integers(1, 9, (2, 19, 3, 2))
    if kind not in HALVES:
        blocks["scales"], blocks["minima"] = blocks["scales"][..., :1], blocks["minima"][..., :1]
    most = 16 if kind.name.startswith("U4") else 256
    blocks["levels"] = rng.integers(0, most, (19, 3, 32))
    levels = blocks["levels"].astype(np.float32).reshape(19, 3, 2, 16)
    if kind in SIGNED:
        true = blocks["scales"][..., None] * (levels - 128)
    else:
        true = blocks["scales"][..., None] * levels + blocks["minima"][..., None]
    chunks = (blocks[:7], blocks[7:8], blocks[8:])
    packed = pack_levels(chunks, (19, inputs), kind=kind, threads=2)
    read = product(127 * np.eye(inputs, dtype=np.float32), packed).T
    assert np.array_equal(read, 127 * true.reshape(19, 96)[:, :inputs])


@pytest.mark.parametrize(("format", "factor"), [("MXFP4", 1.0), ("NVFP4", 0.37)])
def test_blocks_by_chunks(format: str, factor: float) -> None:
    """The last block of a row may be of fewer inputs than it has numbers."""
    source = random_source(format, 19, 192, seed=6)
    rows, inputs = source.data.reshape(19, -1), 144
    options = {"factor": factor} if factor != 1 else {}
    blocks = rows[:, : -(-inputs // WIDTH[format]) * rows.shape[1] * WIDTH[format] // 192]
    packed = pack_blocks(format, (blocks[:7], blocks[7:]), (19, inputs), **options)
    read = product(127 * np.eye(inputs, dtype=np.float32), packed).T
    true = 127 * factor * source.values[:, :inputs].astype(np.float64)
    size = np.abs(true).max(1, keepdims=True)
    assert (np.abs(read - true) <= 4 * size * 2.0**-24).all()


@pytest.mark.parametrize("kind", [MatrixKind.F32, MatrixKind.BF16])
def test_floats_by_chunks(kind: MatrixKind) -> None:
    values = random_source("F32", 19, 70).values
    whole = source_of("F32", values, 19, 70).packed(kind=kind)
    parts = pack_floats((values[:3], values[3:]), (19, 70), kind=kind)
    assert np.array_equal(parts.tiles, whole.tiles)


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
