"""The K-quants: super-blocks of 256 values, whose groups have scales of a few bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from penstock_kernels.triton.linear.gguf_weights import Layout
from penstock_worker.quantisation.gguf.blocks import (
    bit_planes,
    gguf_format,
    group_bits,
    half,
    nibbles,
    packed_nibbles,
    signed,
    two_bit_levels,
)

if TYPE_CHECKING:
    from torch import Tensor


def k_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Unpacks eight 6-bit scales and minima from 12 bytes; each [blocks, 8] uint8."""
    low, middle, high = packed.split(4, -1)
    scales = torch.cat((low & 63, (high & 15) | ((low >> 6) << 4)), -1)
    minima = torch.cat((middle & 63, (high >> 4) | ((middle >> 6) << 4)), -1)
    return scales, minima


def k_nibbles(packed: Tensor) -> Tensor:
    """Unpacks 128 bytes to [blocks, 8, 32]. Each of the four runs of 32 bytes has first one group's
    values as low nibbles, then the next one's as high nibbles."""
    return nibbles(packed.unflatten(-1, (4, 32))).reshape(-1, 8, 32)


def k_values(blocks: Tensor, levels: Tensor) -> Tensor:
    """Dequantises levels [blocks, 8, 32] to [blocks, 256] float32, by each group's scale and
    minimum."""
    scales, minima = k_scales(blocks[:, 4:16])
    scales = half(blocks, 0).float() * scales.float()
    minima = half(blocks, 2).float() * minima.float()
    return (scales[:, :, None] * levels.float() - minima[:, :, None]).flatten(1)


def k_factors(blocks: Tensor) -> dict[str, Tensor]:
    """Returns scales and minima with their units for GGUFWeights. The file's format subtracts
    minima and GGUFWeights adds them, so their unit is negated."""
    scales, minima = k_scales(blocks[:, 4:16])
    return {
        "scales": scales,
        "minima": minima,
        "units": half(blocks, 0),
        "unit_minima": -half(blocks, 2),
    }


def _decode_q2_k(blocks: Tensor) -> Tensor:
    scales = half(blocks, 80).float() * (blocks[:, :16] & 15).float()
    minima = half(blocks, 82).float() * (blocks[:, :16] >> 4).float()
    levels = two_bit_levels(blocks[:, 16:80]).reshape(-1, 16, 16).float()
    return (scales[:, :, None] * levels - minima[:, :, None]).flatten(1)


def _split_q2_k(blocks: Tensor) -> dict[str, Tensor]:
    return {
        "levels": packed_nibbles(two_bit_levels(blocks[:, 16:80])),
        "scales": blocks[:, :16] & 15,
        "minima": blocks[:, :16] >> 4,
        "units": half(blocks, 80),
        "unit_minima": -half(blocks, 82),  # The file's format subtracts minima.
    }


_Q2_K_LAYOUT = Layout(4, group=16, minima=True, factors="uint8")

Q2_K = gguf_format("Q2_K", _decode_q2_k, layout=_Q2_K_LAYOUT, split=_split_q2_k, packed=True)
"""Super-blocks of 256 2-bit values, in groups of 16 with a 4-bit scale and minimum each, in units
of one float16 for the scales and one for the minima."""


def _levels_q3_k(blocks: Tensor) -> Tensor:
    """Returns [blocks, 8, 32] uint8, from 0 to 7, where 4 stands for zero."""
    return two_bit_levels(blocks[:, 32:96]) | group_bits(blocks[:, :32]) << 2


def _scales_q3_k(blocks: Tensor) -> Tensor:
    """Returns [blocks, 16] int8, from -32 to 31. Scale i has its four low bits in nibble i of eight
    bytes (low nibbles first), and its two high bits in the four bytes after them: those of the
    first four scales are the lowest of each byte."""
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    high = ((blocks[:, None, 104:108] >> shifts) & 3).flatten(1)
    return (nibbles(blocks[:, 96:104]) | high << 4).to(torch.int8) - 32


def _decode_q3_k(blocks: Tensor) -> Tensor:
    scales = half(blocks, 108).float() * _scales_q3_k(blocks).float()
    values = _levels_q3_k(blocks).reshape(-1, 16, 16).float() - 4
    return (scales[:, :, None] * values).flatten(1)


def _split_q3_k(blocks: Tensor) -> dict[str, Tensor]:
    return {
        "levels": packed_nibbles(_levels_q3_k(blocks)),
        "scales": _scales_q3_k(blocks),
        "units": half(blocks, 108),
    }


_Q3_K_LAYOUT = Layout(4, offset=4, group=16, factors="int8")

Q3_K = gguf_format("Q3_K", _decode_q3_k, layout=_Q3_K_LAYOUT, split=_split_q3_k, packed=True)
"""Super-blocks of 256 3-bit values with offset 4, whose third bits are stored separately, in groups
of 16 with a 6-bit scale each, in units of one float16."""


def _decode_q4_k(blocks: Tensor) -> Tensor:
    return k_values(blocks, k_nibbles(blocks[:, 16:]))


def _split_q4_k(blocks: Tensor) -> dict[str, Tensor]:
    return k_factors(blocks) | {"levels": packed_nibbles(k_nibbles(blocks[:, 16:]))}


_Q4_K_LAYOUT = Layout(4, minima=True, factors="uint8")

Q4_K = gguf_format("Q4_K", _decode_q4_k, layout=_Q4_K_LAYOUT, split=_split_q4_k, packed=True)
"""Super-blocks of 256 4-bit values, in groups of 32 with a 6-bit scale and minimum each, in units
of one float16 for the scales and one for the minima."""


def _levels_q5_k(blocks: Tensor) -> Tensor:
    """Returns [blocks, 8, 32] uint8, from 0 to 31."""
    return k_nibbles(blocks[:, 48:]) | group_bits(blocks[:, 16:48]) << 4


def _decode_q5_k(blocks: Tensor) -> Tensor:
    return k_values(blocks, _levels_q5_k(blocks))


def _split_q5_k(blocks: Tensor) -> dict[str, Tensor]:
    levels = _levels_q5_k(blocks)
    return k_factors(blocks) | {"levels": packed_nibbles(levels), "high": bit_planes(levels, 5)}


_Q5_K_LAYOUT = Layout(5, minima=True, factors="uint8")

Q5_K = gguf_format("Q5_K", _decode_q5_k, layout=_Q5_K_LAYOUT, split=_split_q5_k, packed=True)
"""As Q4_K, with 5-bit values, whose fifth bits are stored separately."""


def _levels_q6_k(blocks: Tensor) -> Tensor:
    """Returns [blocks, 8, 32] uint8, from 0 to 63, where 32 stands for zero."""
    low = nibbles(blocks[:, :128].unflatten(-1, (2, 64))).reshape(-1, 8, 32)
    return low | two_bit_levels(blocks[:, 128:192]) << 4


def _decode_q6_k(blocks: Tensor) -> Tensor:
    values = _levels_q6_k(blocks).float() - 32
    scales = half(blocks, 208).float() * signed(blocks, 192, 208).float()
    return (scales[:, :, None] * values.reshape(-1, 16, 16)).flatten(1)


def _split_q6_k(blocks: Tensor) -> dict[str, Tensor]:
    levels = _levels_q6_k(blocks)
    return {
        "levels": packed_nibbles(levels),
        "high": bit_planes(levels, 6),
        "scales": blocks[:, 192:208].view(torch.int8),
        "units": half(blocks, 208),
    }


_Q6_K_LAYOUT = Layout(6, offset=32, group=16, factors="int8")

Q6_K = gguf_format("Q6_K", _decode_q6_k, layout=_Q6_K_LAYOUT, split=_split_q6_k, packed=True)
"""Super-blocks of 256 6-bit values with offset 32, in groups of 16 with an int8 scale each, in
units of one float16."""
