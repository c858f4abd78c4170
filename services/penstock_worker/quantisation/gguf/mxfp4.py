"""MXFP4: blocks of 32 4-bit floating-point numbers, and a power of two as their scale, as the OCP
microscaling formats, version 1.0, have it. The low nibbles are the first half."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock_kernels.triton.linear.gguf_weights import Layout
from penstock_worker.quantisation.gguf.blocks import gguf_format, nibbles
from penstock_worker.quantisation.gguf.nonlinear import E2M1, looked_up


def _values(blocks: Tensor) -> Tensor:
    return looked_up(nibbles(blocks[:, 1:]), E2M1)


def _scales(blocks: Tensor) -> Tensor:
    """Returns [blocks, 1] float32: 2 ** (exponent - 128), half the format's scale, because the
    table has twice its numbers. Exact: the smallest, 2 ** -128, is a subnormal number."""
    exponents = blocks[:, :1].int()
    bits = torch.where(exponents < 2, 0x200000 << exponents.clamp(max=1), (exponents - 1) << 23)
    return bits.view(torch.float32)


def _decode(blocks: Tensor) -> Tensor:
    return _scales(blocks) * _values(blocks).float()


def _split(blocks: Tensor) -> dict[str, Tensor]:
    scales = _scales(blocks)
    units = torch.ones(scales.shape, dtype=torch.float16)
    return {"levels": _values(blocks)[:, None], "scales": scales, "units": units}


# Powers of two beyond float16's: scales are float32, and all units are 1.
_LAYOUT = Layout(8, factors=torch.float32, unit=32)

MXFP4 = gguf_format("MXFP4", _decode, layout=_LAYOUT, split=_split, packed=True)
