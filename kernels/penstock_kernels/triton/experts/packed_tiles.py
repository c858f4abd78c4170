"""Matrices of the `cpu` kernels on a device: their tiles, as they lie in the host's memory, become
weights that `expert_levels` reads.

Levels become bytes, and scales and minima float32. Nothing is rounded: what a CPU multiplies is
exact there too. Layout of the tiles: cpu/csrc/matrix_types.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from penstock_kernels.cpu.matrix import MatrixKind
from penstock_kernels.triton.linear.gguf_weights import GROUP, GGUFWeights, Layout

LANES = 16
"""Outputs of a tile."""
VECTOR = 64
"""Bytes of a vector: four inputs of each output."""
VECTORS = 8
"""Vectors of a group."""
SUPER = 8
"""Groups that have float16 factors in common."""

_IQ4 = (1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241)
_E2M1 = (128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116)


@dataclass(frozen=True)
class TileForm:
    """How a kind of tiles is read."""

    bits: int
    """Bits of a level."""
    less: int = 0
    """What is subtracted from each level."""
    table: tuple[int, ...] = ()
    """What levels stand for, before `less` is subtracted; empty: themselves."""
    numbers: torch.dtype = torch.float16
    """The type of scales and minima. int8: they are times float16 factors of SUPER groups."""
    scales: int = 1
    """Scales of a group: 1 for its 32 inputs, or 2 for 16 each."""
    minima: bool = False

    @property
    def level_bytes(self) -> int:
        """Bytes of a group's levels."""
        return LANES * GROUP * self.bits // 8

    @property
    def count(self) -> int:
        """Scales and minima of an output's group."""
        return self.scales * (2 if self.minima else 1)

    @property
    def scale_bytes(self) -> int:
        """Bytes of a group's scales and minima."""
        return LANES * self.count * self.numbers.itemsize

    @property
    def super_bytes(self) -> int:
        """Bytes of the factors in front of SUPER groups' scales; 0: there are none."""
        if self.numbers != torch.int8:
            return 0
        return LANES * 2 * (2 if self.minima else 1)

    @property
    def layout(self) -> Layout:
        """The layout of the weights that tiles become."""
        group = GROUP // self.scales
        return Layout(bits=8, group=group, minima=self.minima, factors="float32", unit=0)


_BYTES: dict[str, Any] = {"numbers": torch.int8}
FORMS = {
    MatrixKind.U4H: TileForm(4, minima=True),
    MatrixKind.U5H: TileForm(5, minima=True),
    MatrixKind.S8H: TileForm(8, less=128),
    MatrixKind.U4D: TileForm(4, less=8),
    MatrixKind.U5D: TileForm(5, less=16),
    MatrixKind.T4H: TileForm(4, less=128, table=_IQ4),
    MatrixKind.T4W: TileForm(4, less=128, table=_IQ4, numbers=torch.float32),
    MatrixKind.F4W: TileForm(4, less=128, table=_E2M1, numbers=torch.float32),
    MatrixKind.U4K: TileForm(4, minima=True, **_BYTES),
    MatrixKind.U5K: TileForm(5, minima=True, **_BYTES),
    MatrixKind.S6K: TileForm(6, less=32, scales=2, **_BYTES),
    MatrixKind.S3K: TileForm(3, less=4, scales=2, **_BYTES),
    MatrixKind.U2K: TileForm(2, scales=2, minima=True, **_BYTES),
}
"""Kinds that level_products.LEVEL_TYPES are packed as."""


def table_of(kind: int, device: torch.device) -> Tensor | None:
    """Returns the levels that a kind's bytes stand for, [16] uint8; None for a kind without a
    table. The host waits for the copy, so it is made once."""
    table = FORMS[MatrixKind(kind)].table
    return torch.tensor(table, dtype=torch.uint8, device=device) if table else None


def unpacked(
    tiles: Tensor, kind: int, outputs: int, inputs: int, table: Tensor | None
) -> GGUFWeights:
    """Returns the matrices of several experts, [experts * outputs, inputs], on the tiles' device.
    The host waits for nothing.

    `tiles`: [experts, bytes] uint8, of each expert those of one matrix, as PackedMatrix has them.
    `kind`: of the matrices, a key of FORMS.
    `table`: `table_of` the kind.
    """
    form = FORMS[MatrixKind(kind)]
    groups = inputs // GROUP
    by_tile = tiles.unflatten(1, (-(-outputs // LANES), -1))
    levels = by_tile[..., : groups * form.level_bytes].unflatten(-1, (groups, -1))
    scales = by_tile[..., groups * form.level_bytes :]
    numbers = _numbers(scales, form, groups)
    count = form.scales
    return GGUFWeights(
        form.layout,
        levels=_by_group(_levels(levels, form, table), outputs),
        high=None,
        scales=_by_part(numbers[..., :count, :], outputs),
        minima=_by_part(numbers[..., count:, :], outputs) if form.minima else None,
        units=None,
        unit_minima=None,
    )


def _levels(packed: Tensor, form: TileForm, table: Tensor | None) -> Tensor:
    """Maps a group's bytes, [experts, tiles, groups, bytes] uint8, to levels, [experts, tiles,
    groups, 16 outputs, 32] int8."""
    low = 8 if form.bits == 8 else 4 if form.bits >= 4 else 2
    share, more = 8 // low, form.bits - low
    vectors = packed[..., : VECTOR * low].unflatten(-1, (low, 1, VECTOR))
    found = _pieces(vectors, low, share).flatten(-3, -2)
    if more:
        rest = packed[..., VECTOR * low :].unflatten(-1, (more, 1, VECTOR))
        found = found | (_pieces(rest, more, VECTORS // more).flatten(-3, -2) << low)
    if table is not None:
        found = table[found.int()]
    # Bytes wrap around: a difference of two has the bits of the signed number that it stands for.
    signed = (found - form.less).view(torch.int8)
    return signed.unflatten(-1, (LANES, 4)).transpose(-3, -2).flatten(-2)


def _pieces(vectors: Tensor, bits: int, count: int) -> Tensor:
    """Maps bytes, [..., 1, n] uint8, to the `count` numbers of so many bits in each, [..., count,
    n]."""
    if count == 1:
        return vectors
    shifts = torch.arange(0, bits * count, bits, dtype=torch.uint8, device=vectors.device)
    return (vectors >> shifts[:, None]) & ((1 << bits) - 1)


def _numbers(packed: Tensor, form: TileForm, groups: int) -> Tensor:
    """Returns scales and minima, [experts, tiles, groups, count, 16 outputs] float32.

    `packed`: [experts, tiles, bytes] uint8; there may be more bytes than are needed.
    """
    each, head = form.scale_bytes, form.super_bytes
    if not head:
        own = packed[..., : groups * each].contiguous().view(form.numbers).float()
        return own.unflatten(-1, (groups, form.count, LANES))
    supers = groups // SUPER
    whole = packed[..., : supers * (head + SUPER * each)].unflatten(-1, (supers, -1))
    factors = whole[..., :head].contiguous().view(torch.float16).float()
    factors = factors.unflatten(-1, (-1, LANES)).repeat_interleave(form.scales, -2)
    own = whole[..., head:].contiguous().view(torch.int8).float()
    own = own.unflatten(-1, (SUPER, form.count, LANES))
    return (own * factors[..., None, :, :]).flatten(-4, -3)


def _by_group(levels: Tensor, outputs: int) -> Tensor:
    """Maps [experts, tiles, groups, 16, 32] to [groups, experts * outputs, 32]."""
    ordered = levels.permute(2, 0, 1, 3, 4).flatten(2, 3)
    return ordered[:, :, :outputs].flatten(1, 2).contiguous()


def _by_part(numbers: Tensor, outputs: int) -> Tensor:
    """Maps [experts, tiles, groups, parts, 16] to [groups * parts, experts * outputs]."""
    ordered = numbers.permute(2, 3, 0, 1, 4).flatten(3, 4)
    return ordered[..., :outputs].flatten(2, 3).flatten(0, 1).contiguous()
