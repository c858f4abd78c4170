"""Numbers in GGUF's types, read by the gguf package."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.errors import UnsupportedModel
from penstock.formats.gguf_types import BLOCKS
from penstock_conversion.quantize.encoders import BLOCK_ENCODERS, ENCODED_TYPES, encode
from penstock_worker.quantisation.registry import FORMATS

LARGEST_ERROR = {
    "F32": 0.0,
    "F16": 5e-4,
    "BF16": 4e-3,
    "Q8_0": 6e-3,
    "Q6_K": 0.018,
    "Q5_K": 0.037,
    "Q5_1": 0.035,
    "Q5_0": 0.042,
    "Q4_K": 0.074,
    "Q4_1": 0.073,
    "Q4_0": 0.085,
    "Q3_K": 0.15,
    "Q2_K": 0.29,
}
"""Of normally distributed numbers: the root of the error's square sum over theirs."""


def matrix(seed: int = 0, rows: int = 24, columns: int = 512) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 0.02


def decoded(content: Tensor, kind: str) -> Tensor:
    found = gguf.dequantize(content.numpy(), gguf.GGMLQuantizationType[kind])
    return torch.from_numpy(np.array(found, dtype=np.float32))


def error(found: Tensor, x: Tensor, weights: Tensor | None = None) -> float:
    by = torch.ones_like(x) if weights is None else weights.expand_as(x)
    return float(((found - x).square() * by).sum().div((x.square() * by).sum()).sqrt())


def test_the_limits_name_every_type() -> None:
    assert set(LARGEST_ERROR) == set(ENCODED_TYPES)


@pytest.mark.parametrize("kind", ENCODED_TYPES)
def test_the_gguf_package_reads_what_was_meant(kind: str) -> None:
    x = matrix()
    content = encode(x, kind, None, "x")
    block = BLOCKS[kind]
    assert content.shape == (len(x), x.shape[1] // block.elements * block.bytes)
    assert error(decoded(content, kind), x) <= LARGEST_ERROR[kind]


@pytest.mark.parametrize("kind", BLOCK_ENCODERS)
def test_penstock_reads_the_same_numbers(kind: str) -> None:
    content = encode(matrix(1), kind, None, "x")
    ours = FORMATS[kind].decode(content.reshape(-1, BLOCKS[kind].bytes)).reshape(24, 512)
    assert torch.equal(ours.float(), decoded(content, kind))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_no_worse_than_rounding_by_the_range(kind: str) -> None:
    x = matrix(2)
    theirs = gguf.quantize(x.numpy(), gguf.GGMLQuantizationType[kind])
    by_range = error(decoded(torch.from_numpy(theirs), kind), x)
    assert error(decoded(encode(x, kind, None, "x"), kind), x) <= by_range * 1.001


@pytest.mark.parametrize("kind", [kind for kind in BLOCK_ENCODERS if kind != "Q8_0"])
def test_columns_that_matter_are_rounded_with_more_care(kind: str) -> None:
    x = matrix(3)
    importance = torch.ones(512)
    importance[::8] = 200.0
    plain, weighted = (decoded(encode(x, kind, each, "x"), kind) for each in (None, importance))
    assert error(weighted, x, importance) < 0.95 * error(plain, x, importance)


@pytest.mark.parametrize("kind", BLOCK_ENCODERS)
@pytest.mark.parametrize("low", [False, True])
def test_blocks_of_one_number_and_of_zeros_keep_them(kind: str, low: bool) -> None:
    x = torch.zeros(3, 512)
    x[1] = -0.5 if low else 0.5
    found = decoded(encode(x, kind, None, "x"), kind)
    assert torch.equal(found[0], x[0])
    assert torch.equal(found[2], x[2])
    assert error(found[1], x[1]) < 0.01


@pytest.mark.parametrize("kind", BLOCK_ENCODERS)
def test_a_far_number_stays(kind: str) -> None:
    x = matrix(4)
    x[0, 37], x[1, 300] = 3.0, -3.0
    found = decoded(encode(x, kind, None, "x"), kind)
    assert abs(found[0, 37] - 3) < 0.25
    assert abs(found[1, 300] + 3) < 0.25


@pytest.mark.parametrize("kind", BLOCK_ENCODERS)
def test_columns_without_any_importance_do_no_harm(kind: str) -> None:
    found = decoded(encode(matrix(5), kind, torch.zeros(512), "x"), kind)
    assert bool(found.isfinite().all())
    assert error(found, matrix(5)) <= LARGEST_ERROR[kind] * 1.3


@pytest.mark.parametrize("kind", ["Q4_K", "Q8_0", "F16"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e9])
def test_what_a_type_cannot_hold_is_refused(kind: str, bad: float) -> None:
    x = matrix(6)
    x[3, 5] = bad
    with pytest.raises(UnsupportedModel, match=r"tensor blk\.0\.x holds numbers"):
        encode(x, kind, None, "blk.0.x")
