"""How levels lie in the bytes of GGUF's blocks: what penstock_worker.quantisation.gguf unpacks.

Levels are uint8. The layouts are those of ggml's block structs (ggml-common.h).
"""

from __future__ import annotations

import torch
from torch import Tensor


def half_bytes(values: Tensor) -> Tensor:
    """[blocks] float16 as [blocks, 2] bytes."""
    return values.to(torch.float16).contiguous().view(torch.uint8).reshape(-1, 2)


def nibbles(levels: Tensor) -> Tensor:
    """[..., 2 n] levels of 4 bits as [..., n] bytes: the first half's are the low nibbles."""
    low, high = levels.chunk(2, -1)
    return low | high << 4


def bits_in_bytes(bits: Tensor) -> Tensor:
    """[blocks, 8 n] bits, 0 or 1, as [blocks, n] bytes, of a byte the lowest bit first."""
    by_byte = bits.unflatten(-1, (-1, 8))
    shifts = torch.arange(8, dtype=torch.uint8)
    return (by_byte << shifts).sum(-1, dtype=torch.uint8)


def k_nibbles(levels: Tensor) -> Tensor:
    """[blocks, 8, 32] levels of 4 bits as [blocks, 128] bytes: in each of the four runs of 32
    bytes, one group's are the low nibbles, the next one's the high ones."""
    pairs = levels.unflatten(1, (4, 2))
    return (pairs[:, :, 0] | pairs[:, :, 1] << 4).flatten(1)


def group_bits(bits: Tensor) -> Tensor:
    """[blocks, 8, 32] bits as [blocks, 32] bytes: a byte's bit i is group i's."""
    shifts = torch.arange(8, dtype=torch.uint8)[:, None]
    return (bits << shifts).sum(1, dtype=torch.uint8)


def bit_pairs(levels: Tensor) -> Tensor:
    """[blocks, 8, 32] levels of 2 bits as [blocks, 64] bytes: each run of 32 bytes has
    those of four groups, the first one's in the lowest two bits."""
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    return (levels.unflatten(1, (2, 4)) << shifts).sum(2, dtype=torch.uint8).flatten(1)


def six_bit_pairs(scales: Tensor, minima: Tensor) -> Tensor:
    """Eight scales and eight minima of 6 bits, each [blocks, 8], as [blocks, 12] bytes."""
    low = scales[:, :4] | (scales[:, 4:] >> 4) << 6
    middle = minima[:, :4] | (minima[:, 4:] >> 4) << 6
    high = (scales[:, 4:] & 15) | (minima[:, 4:] & 15) << 4
    return torch.cat((low, middle, high), -1)


def six_bit_scales(scales: Tensor) -> Tensor:
    """Sixteen scales of 6 bits, [blocks, 16], as [blocks, 12] bytes: first all low nibbles, then
    what is above them, that of four scales in the same bits of the last four bytes."""
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    above = ((scales >> 4).unflatten(-1, (4, 4)) << shifts).sum(1, dtype=torch.uint8)
    return torch.cat((nibbles(scales & 15), above), -1)
