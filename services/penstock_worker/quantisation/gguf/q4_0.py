"""Q4_0: blocks of 32 4-bit values with offset 8, and a scale."""

from __future__ import annotations

from torch import Tensor

from penstock_kernels.triton.linear.gguf_weights import Layout
from penstock_worker.quantisation.gguf.blocks import gguf_format, half, nibbles


def _decode(blocks: Tensor) -> Tensor:
    return half(blocks, 0).float() * (nibbles(blocks[:, 2:]).float() - 8)


def _split(blocks: Tensor) -> dict[str, Tensor]:
    return {"levels": blocks[:, None, 2:], "scales": half(blocks, 0)}


Q4_0 = gguf_format("Q4_0", _decode, layout=Layout(4, offset=8), split=_split, packed=True)
