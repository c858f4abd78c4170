"""Encoders of GGUF's types with blocks of 32 numbers, with a scale and in some a minimum."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock_conversion.quantize.grids import affine_grid, even_grid
from penstock_conversion.quantize.packing import bits_in_bytes, half_bytes, nibbles


def encode_even(x: Tensor, weights: Tensor, bits: int) -> Tensor:
    """Q4_0 and Q5_0. x, weights: [blocks, 32] float32. Returns [blocks, bytes] uint8."""
    lowest = -(1 << bits - 1)
    scale = even_grid(x, weights, lowest).half()
    levels = _levels(x, scale.float(), lowest, -lowest - 1) - lowest
    return torch.cat((half_bytes(scale), *_packed(levels, bits)), -1)


def encode_affine(x: Tensor, weights: Tensor, bits: int) -> Tensor:
    """Q4_1 and Q5_1, as `encode_even`."""
    highest = (1 << bits) - 1
    scale, minimum = affine_grid(x, weights, highest, any_minimum=True)
    scale, minimum = scale.half(), minimum.half()
    levels = _levels(x - minimum.float()[:, None], scale.float(), 0, highest)
    return torch.cat((half_bytes(scale), half_bytes(minimum), *_packed(levels, bits)), -1)


def encode_bytes(x: Tensor, weights: Tensor) -> Tensor:
    """Q8_0, as `encode_even`; weights make no difference."""
    scale = x.abs().amax(-1) / 127
    levels = _levels(x, scale, -127, 127).to(torch.int8).view(torch.uint8)
    return torch.cat((half_bytes(scale), levels), -1)


def _levels(x: Tensor, scale: Tensor, lowest: int, highest: int) -> Tensor:
    """[blocks, 32] float32; zeros where the scale is 0."""
    inverse = torch.where(scale == 0, 0.0, 1 / scale)
    return (x * inverse[:, None]).round_().clamp_(lowest, highest)


def _packed(levels: Tensor, bits: int) -> list[Tensor]:
    found = levels.to(torch.uint8)
    fifth = [bits_in_bytes(found >> 4)] if bits == 5 else []
    return [*fifth, nibbles(found & 15)]
