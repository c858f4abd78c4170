"""Rows of a matrix as GGUF's types have them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from penstock.errors import UnsupportedModel
from penstock.formats.gguf_types import BLOCKS
from penstock_conversion.quantize.blocks import encode_affine, encode_bytes, encode_even
from penstock_conversion.quantize.k_blocks import (
    encode_q2_k,
    encode_q3_k,
    encode_q4_k,
    encode_q5_k,
    encode_q6_k,
)

BlockEncoder = Callable[[Tensor, Tensor], Tensor]
"""Maps numbers and their weights, both [blocks, elements] float32, to [blocks, bytes] uint8."""

BLOCK_ENCODERS: dict[str, BlockEncoder] = {
    "Q4_0": partial(encode_even, bits=4),
    "Q4_1": partial(encode_affine, bits=4),
    "Q5_0": partial(encode_even, bits=5),
    "Q5_1": partial(encode_affine, bits=5),
    "Q8_0": encode_bytes,
    "Q2_K": encode_q2_k,
    "Q3_K": encode_q3_k,
    "Q4_K": encode_q4_k,
    "Q5_K": encode_q5_k,
    "Q6_K": encode_q6_k,
}
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
LEAST_WEIGHT = 1e-6
"""The weight of a number whose error makes no difference; the mean is 1."""
ENCODED_TYPES = (*FLOATS, *BLOCK_ENCODERS)
"""Types that tensors are written in."""


def encode(rows: Tensor, kind: str, importance: Tensor | None, name: str) -> Tensor:
    """Returns rows, [rows, columns] float32, as [rows, bytes] uint8 in one of ENCODED_TYPES.

    importance: [columns] float32, how much an error in each column matters; None: equally.
    name: of the tensor. Raises UnsupportedModel for numbers that the type can't hold.
    """
    if not bool(rows.isfinite().all()):
        raise UnsupportedModel(f"tensor {name} holds numbers that aren't finite")
    if kind in FLOATS:
        found = rows.to(FLOATS[kind])
        _check_range(found, name, kind)
        return found.contiguous().view(torch.uint8).reshape(len(rows), -1)
    count, columns = rows.shape
    size = BLOCKS[kind].elements
    if columns % size:
        raise ValueError(f"{name} has rows of {columns}; {kind} needs a multiple of {size}")
    blocks = rows.reshape(-1, size)
    _check_range((blocks.abs().amax() / 16).half(), name, kind)
    encoded = BLOCK_ENCODERS[kind](blocks, _weights(rows, importance).reshape(-1, size))
    return encoded.reshape(count, -1)


def _weights(rows: Tensor, importance: Tensor | None) -> Tensor:
    """How much each number's error counts: numbers that are large in their row count more, and with
    an importance those by which larger inputs are multiplied."""
    own = rows.abs() + rows.square().mean(-1, keepdim=True).sqrt()
    if importance is not None:
        own = own * importance
    mean = own.mean(-1, keepdim=True)
    return (own / torch.where(mean > 0, mean, 1.0)).clamp_(min=LEAST_WEIGHT)


def _check_range(found: Tensor, name: str, kind: str) -> None:
    if not bool(found.isfinite().all()):
        raise UnsupportedModel(f"tensor {name} holds numbers that are too large for {kind}")
