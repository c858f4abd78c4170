"""MXFP4 in compressed-tensors' layout (OCP microscaling formats, 2023).

`weight_packed` uint8 [outputs, inputs / 2], two numbers of type e2m1 in a byte, the first in its
low bits; `weight_scale` uint8 [outputs, inputs / 32], powers of two (e8m0).

Twice a number is a whole one, so these are signed levels with half the scale: no rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.formats.safetensors_file import SafetensorsTensor
from penstock.model.quantised_checkpoint import WeightScheme
from penstock_worker.quantisation.checkpoints.matrix import LevelMatrix
from penstock_worker.quantisation.checkpoints.module import (
    CheckpointFormat,
    Module,
    integers,
    powers_of_two,
)

_GROUP = 32
_CENTRE = 128
_MAGNITUDES = np.array([0, 1, 2, 3, 4, 6, 8, 12], dtype=np.int16)
"""Twice e2m1's magnitudes."""
_LEVELS = np.concatenate((_CENTRE + _MAGNITUDES, _CENTRE - _MAGNITUDES)).astype(np.uint8)
"""The levels that 4 bits stand for, of which the fourth is the sign."""


@dataclass(frozen=True)
class MXFP4Matrix(LevelMatrix):
    packed: SafetensorsTensor
    stored_scales: SafetensorsTensor

    def levels(self, rows: range, columns: range) -> np.ndarray:
        first, last = columns.start // 2, -(-columns.stop // 2)
        both = integers(self.packed)[rows.start : rows.stop, first:last]
        codes = np.stack((both & 15, both >> 4), -1).reshape(len(rows), -1)
        return _LEVELS[codes[:, columns.start - 2 * first : columns.stop - 2 * first]]

    def scales(self, rows: range) -> np.ndarray:
        return powers_of_two(integers(self.stored_scales)[rows.start : rows.stop]) / 2

    def zeros(self, rows: range) -> np.ndarray:
        return np.full((len(rows), self.groups), _CENTRE, dtype=np.int32)


def _read(module: Module, scheme: WeightScheme) -> MXFP4Matrix | None:
    if scheme.group_size != _GROUP or not scheme.symmetric:
        return None
    packed = module.matrix("weight_packed", ("U8",))
    outputs, inputs = packed.shape[0], 2 * packed.shape[1]
    return MXFP4Matrix(
        module.name,
        outputs,
        inputs,
        scheme.levels,
        bits=8,
        group=_GROUP,
        order=None,
        packed=packed,
        stored_scales=module.take("weight_scale", ("U8",), (outputs, -(-inputs // _GROUP))),
    )


def _applies(module: Module) -> bool:
    return "weight_packed" in module.parts and module.parts["weight_packed"].dtype == "U8"


MXFP4 = CheckpointFormat("mxfp4", _applies, _read)
