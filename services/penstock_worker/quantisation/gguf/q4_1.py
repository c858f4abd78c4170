"""Q4_1: blocks of 32 4-bit values, with a scale and a minimum."""

from __future__ import annotations

from torch import Tensor

from penstock_kernels.triton.linear.gguf_weights import Layout
from penstock_worker.quantisation.gguf.blocks import gguf_format, half, nibbles


def _decode(blocks: Tensor) -> Tensor:
    return half(blocks, 0).float() * nibbles(blocks[:, 4:]).float() + half(blocks, 2).float()


def _split(blocks: Tensor) -> dict[str, Tensor]:
    return {"levels": blocks[:, None, 4:], "scales": half(blocks, 0), "minima": half(blocks, 2)}


Q4_1 = gguf_format("Q4_1", _decode, layout=Layout(4, minima=True), split=_split, packed=True)
