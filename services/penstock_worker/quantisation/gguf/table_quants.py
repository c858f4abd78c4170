"""Types whose 4-bit levels stand for the entries of a table instead of whole numbers in order. The
entries are int8, so that levels become signed bytes without rounding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from penstock_kernels.triton.linear.gguf_weights import Layout
from penstock_worker.quantisation.gguf.blocks import gguf_format, half, nibbles, packed_nibbles

if TYPE_CHECKING:
    from torch import Tensor

IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The table of IQ4_NL and IQ4_XS (`kvalues_iq4nl` in ggml-common.h)."""
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the 4-bit floating-point numbers of the OCP microscaling formats, version 1.0: the highest
bit is the sign, then come two bits of exponent and one of mantissa."""


def looked_up(levels: Tensor, table: tuple[int, ...]) -> Tensor:
    """Maps uint8 levels from 0 to 15 to the table's entries, int8 of the same shape."""
    return torch.tensor(table, dtype=torch.int8)[levels.int()]


def _values_iq4_nl(blocks: Tensor) -> Tensor:
    return looked_up(nibbles(blocks[:, 2:]), IQ4)


def _decode_iq4_nl(blocks: Tensor) -> Tensor:
    return half(blocks, 0).float() * _values_iq4_nl(blocks).float()


def _split_iq4_nl(blocks: Tensor) -> dict[str, Tensor]:
    return {"levels": _values_iq4_nl(blocks)[:, None], "scales": half(blocks, 0)}


IQ4_NL = gguf_format("IQ4_NL", _decode_iq4_nl, layout=Layout(8), split=_split_iq4_nl, packed=True)
"""Blocks of 32 4-bit entries of a table, and a scale."""


def _values_iq4_xs(blocks: Tensor) -> Tensor:
    """Returns [blocks, 8, 32] int8."""
    return looked_up(nibbles(blocks[:, 8:].unflatten(-1, (8, 16))), IQ4)


def _scales_iq4_xs(blocks: Tensor) -> Tensor:
    """Returns [blocks, 8] int8, from -32 to 31. Bytes 4 to 7 have the four low bits of each scale,
    two scales a byte, and bytes 2 and 3 the two high ones, four scales a byte."""
    low = (blocks[:, 4:8, None] >> torch.tensor([0, 4], dtype=torch.uint8)) & 15
    high = (blocks[:, 2:4, None] >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8)) & 3
    return (low.flatten(1) | high.flatten(1) << 4).to(torch.int8) - 32


def _decode_iq4_xs(blocks: Tensor) -> Tensor:
    scales = half(blocks, 0).float() * _scales_iq4_xs(blocks).float()
    return (scales[:, :, None] * _values_iq4_xs(blocks).float()).flatten(1)


def _split_iq4_xs(blocks: Tensor) -> dict[str, Tensor]:
    return {
        "levels": _values_iq4_xs(blocks),
        "scales": _scales_iq4_xs(blocks),
        "units": half(blocks, 0),
    }


_IQ4_XS_LAYOUT = Layout(8, factors="int8")

IQ4_XS = gguf_format(
    "IQ4_XS", _decode_iq4_xs, layout=_IQ4_XS_LAYOUT, split=_split_iq4_xs, packed=True
)
"""Super-blocks of 256 4-bit entries of a table, in groups of 32 with a 6-bit scale each, in units
of one float16."""


def _values_mxfp4(blocks: Tensor) -> Tensor:
    return looked_up(nibbles(blocks[:, 1:]), E2M1)


def _scales_mxfp4(blocks: Tensor) -> Tensor:
    """Returns [blocks, 1] float32: 2 ** (exponent - 128), half the format's scale, because the
    table has twice its numbers. Exact: the smallest, 2 ** -128, is a subnormal number."""
    exponents = blocks[:, :1].int()
    bits = torch.where(exponents < 2, 0x200000 << exponents.clamp(max=1), (exponents - 1) << 23)
    return bits.view(torch.float32)


def _decode_mxfp4(blocks: Tensor) -> Tensor:
    return _scales_mxfp4(blocks) * _values_mxfp4(blocks).float()


def _split_mxfp4(blocks: Tensor) -> dict[str, Tensor]:
    return {"levels": blocks[:, None, 1:], "scales": blocks[:, :1]}


_MXFP4_LAYOUT = Layout(4, e2m1=True, factors="uint8", unit=0)

MXFP4 = gguf_format("MXFP4", _decode_mxfp4, layout=_MXFP4_LAYOUT, split=_split_mxfp4, packed=True)
"""Blocks of 32 4-bit floating-point numbers, and a power of two as their scale, as the OCP
microscaling formats, version 1.0, have it. The low nibbles are the first half."""


def _codes_nvfp4(blocks: Tensor) -> Tensor:
    """Returns [blocks, 4, 16] uint8, below 16."""
    return nibbles(blocks[:, 4:].unflatten(-1, (4, 8)))


def _scales_nvfp4(blocks: Tensor) -> Tensor:
    """Returns [blocks, 4] uint8. What isn't a number is 0, as ggml has it."""
    scales = blocks[:, :4] & 127
    return torch.where(scales == 127, 0, scales)


def _decode_nvfp4(blocks: Tensor) -> Tensor:
    scales = _scales_nvfp4(blocks).view(torch.float8_e4m3fn).float() / 2
    return (scales[..., None] * looked_up(_codes_nvfp4(blocks), E2M1).float()).flatten(1)


def _split_nvfp4(blocks: Tensor) -> dict[str, Tensor]:
    levels = packed_nibbles(_codes_nvfp4(blocks).view(-1, 2, 32))
    return {"levels": levels, "scales": _scales_nvfp4(blocks)}


_NVFP4_LAYOUT = Layout(4, e2m1=True, group=16, factors="uint8", unit=0)

NVFP4 = gguf_format("NVFP4", _decode_nvfp4, layout=_NVFP4_LAYOUT, split=_split_nvfp4, packed=True)
"""Blocks of 64 4-bit floating-point numbers, of which 16 share a scale of type e4m3 without a sign.
Matrices are read as those of checkpoints are (checkpoints.nvfp4), which have a factor."""
