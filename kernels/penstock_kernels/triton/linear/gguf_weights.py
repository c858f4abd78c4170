"""Weights in GGUF's quantised types, laid out for the kernels of `gguf_linear`.

No value is rounded on the way: levels are the file's integers, scales and minima its float16
numbers, and those of K-quants stay the products that they are in the file.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from torch import Tensor

GROUP = 32
"""Inputs whose levels are contiguous."""
DtypeName = Literal["float16", "float32", "int8", "uint8"]
"""What torch calls a dtype: the types of files are listed where no torch is imported, too."""


@dataclass(frozen=True)
class Layout:
    """How the numbers of a type are decoded: weight = scale * (level - offset) + minimum."""

    bits: int
    """Bits per level: 4, 5, 6 or 8."""
    offset: int = 0
    e2m1: bool = False
    """Whether 4 bits are a number of type e2m1, and scales are uint8: e8m0 of 32 inputs, or e4m3 of
    16, which is at least 0."""
    group: int = GROUP
    """Inputs that share a scale: 16 or 32."""
    minima: bool = False
    factors: DtypeName | None = None
    """Dtype of scales and minima. None: they are float16 and there are no units. Otherwise a scale
    is such a number, mostly a whole one, times its unit."""
    unit: int = 256
    """Inputs that share a unit; 0: there are no units."""
    unit_dtype: DtypeName = "float16"

    @property
    def units(self) -> bool:
        """Whether there are any."""
        return self.factors is not None and self.unit > 0

    @property
    def constants(self) -> dict[str, int | bool]:
        """The kernels' constants. UNIT is 0 if there are no units."""
        return {
            "BITS": self.bits,
            "OFFSET": self.offset,
            "E2M1": self.e2m1,
            "GROUP": self.group,
            "MINIMA": self.minima,
            "UNIT": self.unit if self.units else 0,
        }


@dataclass(frozen=True)
class GGUFWeights:
    """A matrix [outputs, inputs], stored by group: what a program reads at a time is contiguous.

    A tensor is None if the layout doesn't have it.
    """

    layout: Layout
    levels: Tensor
    """[inputs / 32, outputs, 16] uint8, with a group's first half in the low nibbles and its second
    half in the high ones; for 8 bits [inputs / 32, outputs, 32] int8."""
    high: Tensor | None
    """[inputs / 32, outputs, bits - 4] int32, for 5 and 6 bits: bit i of the first is bit 4 of
    input i's level, and so on."""
    scales: Tensor
    """Scale of each group, [inputs / group, outputs]."""
    minima: Tensor | None
    """Minimum of each group, [inputs / group, outputs]; None for types without minima."""
    units: Tensor | None
    """Scale of each unit's scales, [inputs / unit, outputs] of the layout's dtype; None for types
    without units."""
    unit_minima: Tensor | None
    """Scale of each unit's minima, as `units`; None for types without them."""

    @property
    def outputs(self) -> int:
        return self.levels.shape[1]

    @property
    def inputs(self) -> int:
        return self.levels.shape[0] * GROUP

    @property
    def operands(self) -> dict[str, Tensor | None]:
        """What kernels read of the matrix, by the names of their parameters."""
        return {each.name: getattr(self, each.name) for each in fields(self)[1:]}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors that exist, by name."""
        return {name: tensor for name, tensor in self.operands.items() if tensor is not None}

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())


def empty(layout: Layout, outputs: int, inputs: int, device: torch.device) -> GGUFWeights:
    """Allocates weights to be filled. `inputs` is a multiple of 32, and of the layout's unit if it
    has units."""
    planes = layout.bits - 4 if layout.bits in (5, 6) else 0
    scaled = getattr(torch, layout.factors or "float16")
    unit = getattr(torch, layout.unit_dtype)

    def tensor(per: int, dtype: torch.dtype, *inner: int) -> Tensor:
        return torch.empty(inputs // per, outputs, *inner, dtype=dtype, device=device)

    wide = layout.bits == 8
    return GGUFWeights(
        layout,
        levels=tensor(GROUP, torch.int8, 32) if wide else tensor(GROUP, torch.uint8, 16),
        high=tensor(GROUP, torch.int32, planes) if planes else None,
        scales=tensor(layout.group, scaled),
        minima=tensor(layout.group, scaled) if layout.minima else None,
        units=tensor(layout.unit, unit) if layout.units else None,
        unit_minima=tensor(layout.unit, unit) if layout.units and layout.minima else None,
    )
