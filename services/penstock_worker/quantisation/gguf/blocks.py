"""What the blocks of several GGUF types have in common.

The layouts are those of ggml's block structs (ggml-common.h). Values are computed as ggml's
dequantisation does it, with one rounding per operation, so the bits agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from penstock.formats.gguf_types import BLOCKS
from penstock_kernels.cpu.matrix import MatrixKind
from penstock_kernels.triton.linear.gguf_weights import Layout
from penstock_worker.quantisation.interface import GroupedForm, Groups, KeptForm, StoredFormat

if TYPE_CHECKING:
    from torch import Tensor


def gguf_format(
    name: str,
    decode: Callable[[Tensor], Tensor],
    *,
    layout: Layout | None = None,
    split: Callable[[Tensor], dict[str, Tensor]] | None = None,
    packed: bool = False,
) -> StoredFormat:
    """Returns a quantised type of GGUF files. For `decode` and `packed` see StoredFormat, for
    `layout` and `split` see KeptForm. The last two are None if the Triton kernels have no product
    for the type."""
    kept = KeptForm(layout, split) if layout is not None and split is not None else None
    return StoredFormat(name, *BLOCKS[name], decode, packed=packed, kept=kept)


def grouped_format(
    name: str,
    read: Callable[[Tensor], Groups],
    kind: MatrixKind,
    *,
    group: int = 32,
    kept: KeptForm | None = None,
) -> StoredFormat:
    """Returns a quantised type by its groups of so many inputs. For `read` and `kind` see
    GroupedForm. kept: how Triton kernels hold it, if not with float32's scales and minima."""

    def decode(blocks: Tensor) -> Tensor:
        levels, scales, minima = read(blocks)
        values = scales[..., None] * levels.float()
        return (values if minima is None else values + minima[..., None]).flatten(1)

    def split(blocks: Tensor) -> dict[str, Tensor]:
        levels, scales, minima = read(blocks)
        by_32 = levels.reshape(len(blocks), -1, 32)
        if minima is None:
            return {"levels": by_32, "scales": scales}
        return {"levels": packed_nibbles(by_32), "scales": scales, "minima": minima}

    signed = kind is MatrixKind.S8W16
    layout = Layout(8 if signed else 4, group=group, minima=not signed, factors="float32", unit=0)
    return StoredFormat(
        name,
        *BLOCKS[name],
        decode,
        kept=kept or KeptForm(layout, split),
        grouped=GroupedForm(read, kind),
    )


def bits_of(packed: Tensor) -> Tensor:
    """Unpacks [..., n] bytes to [..., 8 n], of a byte the lowest bit first."""
    return ((packed[..., None] >> torch.arange(8, dtype=torch.uint8)) & 1).flatten(-2)


def nibbles_in_turn(packed: Tensor) -> Tensor:
    """Unpacks [..., n] bytes to [..., 2 n]: of each the low nibble, then the high one."""
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)


def words(packed: Tensor, size: int) -> Tensor:
    """Reads [blocks, n] bytes as numbers of `size` bytes, 2 or 4: [blocks, n / size] int64."""
    kind = torch.int16 if size == 2 else torch.int32
    aligned = packed.clone(memory_format=torch.contiguous_format)
    return aligned.view(kind).long() & ((1 << 8 * size) - 1)


def half(blocks: Tensor, start: int) -> Tensor:
    """Returns the float16 at byte `start` of each block, [blocks, 1]."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16)


def nibbles(packed: Tensor) -> Tensor:
    """Unpacks [..., n] bytes to [..., 2 n]: first all low nibbles, then all high ones."""
    return torch.cat((packed & 15, packed >> 4), -1)


def fifth_bits(blocks: Tensor, start: int) -> Tensor:
    """Returns 32 bits from byte `start` on as the fifth bits of 32 values, [blocks, 32]."""
    shifts = torch.arange(8, dtype=torch.uint8)
    bits = (blocks[:, start : start + 4, None] >> shifts) & 1
    return bits.flatten(1) << 4


def two_bit_levels(packed: Tensor) -> Tensor:
    """Unpacks 64 bytes to [blocks, 8, 32] uint8. Each of the two runs of 32 bytes has four groups'
    values, the first group's in the lowest two bits."""
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    return ((packed.reshape(-1, 2, 1, 32) >> shifts) & 3).reshape(-1, 8, 32)


def group_bits(packed: Tensor) -> Tensor:
    """Unpacks 32 bytes to [blocks, 8, 32] uint8: bit i of each byte belongs to group i."""
    shifts = torch.arange(8, dtype=torch.uint8)[:, None]
    return (packed[:, None] >> shifts) & 1


def signed(blocks: Tensor, start: int, stop: int) -> Tensor:
    """Returns bytes `start` to `stop` of each block as [blocks, stop - start] int8."""
    return blocks[:, start:stop].contiguous().view(torch.int8)


def packed_nibbles(levels: Tensor) -> Tensor:
    """Packs the lower 4 bits of [blocks, groups, 32] integers into bytes, [blocks, groups, 16]."""
    return (levels[..., :16] & 15) | (levels[..., 16:] & 15) << 4


def bit_planes(levels: Tensor, bits: int) -> Tensor:
    """Collects the bits of [blocks, groups, 32] integers from the fifth on, one int32 for the 32
    values of a bit: [blocks, groups, bits - 4]."""
    weights = 1 << torch.arange(32, dtype=torch.int64)
    planes = [
        ((levels.long() >> bit & 1) * weights).sum(-1) for bit in range(4, bits)
    ]  # Up to 2**32 - 1: the upper half becomes negative in int32.
    return torch.stack(planes, -1).to(torch.int32)
