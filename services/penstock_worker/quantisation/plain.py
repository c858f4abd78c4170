"""Unquantised floating-point formats, with one element per block."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock_worker.quantisation.interface import StoredFormat


def _plain(name: str, dtype: torch.dtype) -> StoredFormat:
    def decode(blocks: Tensor) -> Tensor:
        return blocks.view(dtype)

    return StoredFormat(name, 1, dtype.itemsize, decode, plain=True, packed=True)


F32 = _plain("F32", torch.float32)
F16 = _plain("F16", torch.float16)
BF16 = _plain("BF16", torch.bfloat16)
