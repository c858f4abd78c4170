"""Q4_K: the K-quant of 4-bit values."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock_kernels.triton.linear.gguf_weights import Layout
from penstock_worker.quantisation.gguf.blocks import gguf_format, packed_nibbles
from penstock_worker.quantisation.gguf.k_quants import k_factors, k_nibbles, k_values


def _decode(blocks: Tensor) -> Tensor:
    return k_values(blocks, k_nibbles(blocks[:, 16:]))


def _split(blocks: Tensor) -> dict[str, Tensor]:
    return k_factors(blocks) | {"levels": packed_nibbles(k_nibbles(blocks[:, 16:]))}


_LAYOUT = Layout(4, minima=True, factors=torch.uint8)

Q4_K = gguf_format("Q4_K", _decode, layout=_LAYOUT, split=_split, packed=True)
