"""Where every intermediate number is a small whole one, results are exact, to the bit, whatever the
instruction set and the order of sums."""

from __future__ import annotations

import numpy as np
import pytest

from penstock_kernels.cpu.matrix import PLAIN, SOURCES, MatrixKind, product
from tests.kernels.cpu.sources import K_BYTES, K_HALVES, WIDTH, Source, source_of

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("isa")]

OUTPUTS, INPUTS = 21, 512
HALVES = {"Q4_0": 1, "Q4_1": 2, "Q5_0": 1, "Q5_1": 2, "Q8_0": 1}
BYTES = {"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34}


def whole_source(format: str) -> Source:
    """Random levels; scales and minima are powers of two or small whole numbers."""
    rng = np.random.default_rng(11)
    if format in PLAIN:
        values = rng.integers(-100, 101, (OUTPUTS, INPUTS)).astype(np.float32)
        dtype = {"F32": np.float32, "F16": np.float16}.get(format)
        data = values.astype(dtype) if dtype else (values.view(np.uint32) >> 16).astype(np.uint16)
    elif format in K_BYTES:
        count = OUTPUTS * INPUTS // WIDTH[format]
        data = rng.integers(0, 256, (count, K_BYTES[format]), dtype=np.uint8)
        for at in K_HALVES[format]:
            data[:, at : at + 2] = np.array([0.5], np.float16).view(np.uint8)
        if format == "NVFP4":  # Scales from a half to 4.
            data[:, :4] = rng.choice([0x30, 0x38, 0x40, 0x48], (count, 4))
    elif format == "MXFP4":
        data = rng.integers(0, 256, (OUTPUTS * INPUTS // 32, 17), dtype=np.uint8)
        data[:, 0] = rng.integers(125, 130, len(data))
    else:
        count = OUTPUTS * INPUTS // 32
        data = rng.integers(0, 256, (count, BYTES[format]), dtype=np.uint8)
        for half in range(HALVES[format]):
            sizes = np.ldexp(rng.choice([-1.0, 1.0], count), rng.integers(-3, 2, count))
            data[:, 2 * half : 2 * half + 2] = sizes.astype(np.float16)[:, None].view(np.uint8)
    return source_of(format, data, OUTPUTS, INPUTS)


def whole_activations(rows: int) -> np.ndarray:
    """-3 to 3, and one 127 in each group: the group's scale is 1, its levels are the values."""
    rng = np.random.default_rng(12)
    x = rng.integers(-3, 4, (rows, INPUTS)).astype(np.float32)
    peaks = rng.integers(0, 32, (rows, INPUTS // 32)) + np.arange(0, INPUTS, 32)
    np.put_along_axis(x, peaks, rng.choice([-127.0, 127.0], peaks.shape).astype(np.float32), 1)
    return x


@pytest.mark.parametrize("format", SOURCES)
@pytest.mark.parametrize("rows", [1, 8, 13])
def test_whole_numbers_are_exact(format: str, rows: int) -> None:
    source, x = whole_source(format), whole_activations(rows)
    true = x.astype(np.float64) @ source.values.astype(np.float64).T
    assert np.abs(true).max() < 2**23
    assert np.array_equal(product(x, source.packed()), true)


@pytest.mark.parametrize("kind", [MatrixKind.F32, MatrixKind.BF16])
def test_plain_numbers_in_either_kind(kind: MatrixKind) -> None:
    source, x = whole_source("F16"), whole_activations(5)
    true = x.astype(np.float64) @ source.values.astype(np.float64).T
    assert np.array_equal(product(x, source.packed(kind=kind)), true)


def test_int8_weights_of_whole_numbers() -> None:
    """A group whose peak is 127 keeps its whole numbers."""
    rng = np.random.default_rng(13)
    values = rng.integers(-126, 127, (OUTPUTS, INPUTS)).astype(np.float32)
    values[:, ::32] = 127
    source, x = source_of("F32", values, OUTPUTS, INPUTS), whole_activations(9)
    true = x.astype(np.float64) @ values.astype(np.float64).T
    assert np.array_equal(product(x, source.packed(kind=MatrixKind.S8H)), true)


@pytest.mark.parametrize("format", ["Q8_0", "Q5_1", "Q4_0", "Q6_K"])
def test_largest_levels(format: str) -> None:
    """All levels and activations at their ends: nothing saturates on the way."""
    data = whole_source(format).data.reshape(-1, (BYTES | K_BYTES)[format])
    levels = slice(0, 208) if format == "Q6_K" else slice(2 * HALVES[format], None)
    for fill in (0x00, 0xFF, 0x7F, 0x80):
        block = data[:1].copy()
        block[:, levels] = fill
        source = source_of(format, np.repeat(block, len(data), 0), OUTPUTS, INPUTS)
        for sign in (127, -127):
            x = np.full((3, INPUTS), sign, np.float32)
            true = x.astype(np.float64) @ source.values.astype(np.float64).T
            assert np.allclose(product(x, source.packed()), true, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("format", "zeros"), [("Q4_0", b"\x88" * 16), ("Q5_0", b"\xff" * 4 + b"\0" * 16)]
)
@pytest.mark.parametrize("rows", [1, 8, 33])
def test_weights_of_zero_add_nothing(format: str, zeros: bytes, rows: int) -> None:
    """What levels are less by is taken off before anything is rounded."""
    rng = np.random.default_rng(14)
    count = OUTPUTS * INPUTS // 32
    data = np.empty((count, BYTES[format]), np.uint8)
    data[:, :2] = rng.normal(size=count).astype(np.float16)[:, None].view(np.uint8)
    data[:, 2:] = np.frombuffer(zeros, np.uint8)
    x = rng.normal(size=(rows, INPUTS)).astype(np.float32)
    assert not product(x, source_of(format, data, OUTPUTS, INPUTS).packed()).any()
