"""Q8_0: blocks of 32 signed bytes, and a scale."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock_kernels.triton.linear.gguf_weights import Layout
from penstock_worker.quantisation.gguf.blocks import gguf_format, half, signed


def _decode(blocks: Tensor) -> Tensor:
    return half(blocks, 0).float() * signed(blocks, 2, 34).float()


def _split(blocks: Tensor) -> dict[str, Tensor]:
    return {"levels": blocks[:, None, 2:].view(torch.int8), "scales": half(blocks, 0)}


Q8_0 = gguf_format("Q8_0", _decode, layout=Layout(8), split=_split, packed=True)
