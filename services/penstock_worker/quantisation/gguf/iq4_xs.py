"""IQ4_XS: super-blocks of 256 4-bit entries of a table, in groups of 32 with a 6-bit scale each, in
units of one float16."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock_kernels.triton.linear.gguf_weights import Layout
from penstock_worker.quantisation.gguf.blocks import gguf_format, half, nibbles
from penstock_worker.quantisation.gguf.nonlinear import IQ4, looked_up


def _values(blocks: Tensor) -> Tensor:
    """Returns [blocks, 8, 32] int8."""
    return looked_up(nibbles(blocks[:, 8:].unflatten(-1, (8, 16))), IQ4)


def _scales(blocks: Tensor) -> Tensor:
    """Returns [blocks, 8] int8, from -32 to 31. Bytes 4 to 7 have the four low bits of each scale,
    two scales a byte, and bytes 2 and 3 the two high ones, four scales a byte."""
    low = (blocks[:, 4:8, None] >> torch.tensor([0, 4], dtype=torch.uint8)) & 15
    high = (blocks[:, 2:4, None] >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8)) & 3
    return (low.flatten(1) | high.flatten(1) << 4).to(torch.int8) - 32


def _decode(blocks: Tensor) -> Tensor:
    scales = half(blocks, 0).float() * _scales(blocks).float()
    return (scales[:, :, None] * _values(blocks).float()).flatten(1)


def _split(blocks: Tensor) -> dict[str, Tensor]:
    return {"levels": _values(blocks), "scales": _scales(blocks), "units": half(blocks, 0)}


_LAYOUT = Layout(8, factors=torch.int8)

IQ4_XS = gguf_format("IQ4_XS", _decode, layout=_LAYOUT, split=_split, packed=True)
