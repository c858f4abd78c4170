"""FP8 weights: e4m3 without infinities (Micikevicius et al., "FP8 formats", 2022).

`weight` [outputs, inputs], and its scales as `weight_scale`, `scale` (DeepSeek-V4), or
`weight_scale_inv` (which is a factor too, in spite of its name): one for all, [outputs, 1], or
[rows of blocks, columns of blocks], which Model Optimizer stores as [rows, 1, columns, 1]. weight =
scale * number, rounded once, to float32. Where activations are quantised too, their scales are
their own, so an `input_scale` isn't needed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.formats.safetensors_file import SafetensorsTensor
from penstock.model.quantised_checkpoint import WeightScheme
from penstock_worker.quantisation.checkpoints.compressed_tensors import float_bytes
from penstock_worker.quantisation.checkpoints.matrix import CheckpointMatrix, finite, shifted
from penstock_worker.quantisation.checkpoints.module import (
    FLOATS,
    POWERS,
    CheckpointFormat,
    Module,
    float32,
)

if TYPE_CHECKING:
    from torch import Tensor

_SCALES = ("weight_scale_inv", "scale", "weight_scale")
_SCALE_TYPES = (*FLOATS, *POWERS)


def _e4m3() -> np.ndarray:
    """Returns the numbers that bytes stand for, [256] float32: a sign, four bits of exponent and
    three of mantissa, as in FP8 Formats for Deep Learning (Micikevicius et al., 2022)."""
    exponents, mantissas = np.divmod(np.arange(128, dtype=np.float32), 8)
    subnormal = exponents == 0
    positive = np.ldexp(
        np.where(subnormal, 0, 8) + mantissas, (np.where(subnormal, 1, exponents) - 10).astype(int)
    ).astype(np.float32)
    positive[127] = np.nan
    return np.concatenate((positive, -positive))


E4M3 = _e4m3()
"""The numbers that bytes stand for, float32; 127 and 255 are not numbers."""


@dataclass(frozen=True)
class FP8Matrix(CheckpointMatrix):
    weight: SafetensorsTensor
    stored_scales: SafetensorsTensor
    """[rows of blocks, columns of blocks], or of one element."""
    block: tuple[int, int]
    """Outputs and inputs of a block."""
    float8_inputs: bool
    """Whether the weights are meant for products with activations in FP8."""
    first: int = 0
    """The first row of a part of a matrix, in the whole."""

    def row_range(self, rows: range) -> FP8Matrix:
        return replace(self, outputs=len(rows), first=self.first + rows.start)

    @property
    def by_row(self) -> bool:
        """Whether all inputs of an output share a scale."""
        return self.block[1] >= self.inputs

    def levels(self, rows: range, columns: range) -> np.ndarray:
        """Reads the bytes of a part, [rows, columns] uint8. Raises UnsupportedModel for one that
        isn't a number."""
        rows = shifted(rows, self.first)
        stored = self.weight.data.reshape(self.weight.shape)
        part = stored[rows.start : rows.stop, columns.start : columns.stop]
        if ((part & 127) == 127).any():
            raise Module(self.name, {}).wrong("has a weight that isn't a number")
        return part

    def row_scales(self, rows: range) -> np.ndarray:
        """Reads a scale per row, [rows] float32; for a matrix that is `by_row`."""
        scales = self._scales(rows, range(1))
        return np.broadcast_to(scales, (len(rows), 1))[:, 0]

    def group_scales(self, rows: range, columns: range) -> np.ndarray:
        """Reads a scale for each row and each block of inputs, [rows, blocks] float32. `columns`
        begin with a block."""
        step = self.block[1]
        blocks = -(-len(columns) // step)
        first = range(columns.start, columns.start + blocks * step, step)
        # Of each block's first input.
        scales = [self._scales(rows, range(at, at + 1)) for at in first]
        return np.concatenate([np.broadcast_to(each, (len(rows), 1)) for each in scales], 1)

    def values(self, rows: range, columns: range) -> Tensor:
        numbers = E4M3[self.levels(rows, columns)]
        numbers *= self._scales(rows, columns)
        return torch.from_numpy(numbers)

    def _scales(self, rows: range, columns: range) -> np.ndarray:
        """Reads the scale of each weight; a dimension is 1 where all its scales are the same."""
        rows = shifted(rows, self.first)
        shape = self.stored_scales.shape
        by_row = self.block[0] == 1 and len(shape) == 2 and shape[0] > 1
        part = (slice(rows.start, rows.stop),) if by_row else ()
        scales = float32(self.stored_scales, *part)
        scales = finite(scales.reshape(1, 1) if scales.size == 1 else scales, self.name)
        if scales.ndim == 1:
            scales = scales[:, None]
        if scales.ndim == 4:
            scales = scales[:, 0, :, 0]
        for axis, (range_, size) in enumerate(zip((rows, columns), self.block, strict=True)):
            if scales.shape[axis] > 1 and not (by_row and axis == 0):
                places = np.arange(range_.start, range_.stop) // size
                scales = scales.take(places, axis)
        return scales


def _read(module: Module, scheme: WeightScheme) -> FP8Matrix | None:
    weight = module.matrix("weight", ("F8_E4M3",))
    outputs, inputs = weight.shape
    name = next((each for each in _SCALES if each in module.parts), _SCALES[-1])
    scales = module.take(name, _SCALE_TYPES)
    for unused in ("input_scale", "activation_scale", "input_scale_ub"):
        module.find(unused, FLOATS)
    if scheme.block is not None:
        block = scheme.block
        rows, columns = -(-outputs // block[0]), -(-inputs // block[1])
        fits = scales.shape in ((rows, columns), (rows, 1, columns, 1))
        fits = fits or (rows == columns == 1 and scales.shape in ((), (1,)))
    else:
        single = scales.data.size == float_bytes(scales)
        block = (outputs, inputs) if single else (1, inputs)
        fits = single or scales.shape in ((outputs, 1), (outputs,))
    if not fits:
        return None
    return FP8Matrix(
        module.name,
        outputs,
        inputs,
        scheme.levels,
        weight,
        scales,
        block,
        scheme.float8_inputs,
    )


def _applies(module: Module) -> bool:
    return "weight" in module.parts and module.parts["weight"].dtype == "F8_E4M3"


FP8_WEIGHTS = CheckpointFormat("fp8", _applies, _read)
