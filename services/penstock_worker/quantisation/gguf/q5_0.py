"""Q5_0: blocks of 32 5-bit values with offset 16, whose fifth bits are stored separately, and a
scale."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock_kernels.triton.linear.gguf_weights import Layout
from penstock_worker.quantisation.gguf.blocks import fifth_bits, gguf_format, half, nibbles


def _decode(blocks: Tensor) -> Tensor:
    levels = nibbles(blocks[:, 6:]) | fifth_bits(blocks, 2)
    return half(blocks, 0).float() * (levels.float() - 16)


def _split(blocks: Tensor) -> dict[str, Tensor]:
    high = blocks[:, 2:6].contiguous().view(torch.int32)[:, :, None]
    return {"levels": blocks[:, None, 6:], "high": high, "scales": half(blocks, 0)}


Q5_0 = gguf_format("Q5_0", _decode, layout=Layout(5, offset=16), split=_split, packed=True)
