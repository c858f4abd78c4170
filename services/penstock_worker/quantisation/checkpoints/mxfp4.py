"""MXFP4 in compressed-tensors' layout (OCP microscaling formats, 2023).

`weight_packed` (Model Optimizer: `weight`) uint8 [outputs, inputs / 2], two numbers of type e2m1
in a byte, the first in its low bits; `weight_scale` uint8 [outputs, inputs / 32], powers of two
(e8m0). In DeepSeek-V4's experts these are `weight` int8 and `scale` e8m0.

Twice a number is a whole one, so these are signed levels with half the scale: no rounding.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar

import msgspec
import numpy as np

from penstock.formats.safetensors_file import SafetensorsTensor
from penstock.model.quantised_checkpoint import WeightScheme
from penstock_worker.quantisation.checkpoints.matrix import LevelMatrix, shifted
from penstock_worker.quantisation.checkpoints.module import (
    POWERS,
    CheckpointFormat,
    Module,
    integers,
    powers_of_two,
)

E2M1_WEIGHTS = ("weight_packed", "weight")
"""Names that two libraries give to pairs of numbers."""


_MXFP4_GROUP = 32


_CENTRE = 128


_MAGNITUDES = np.array([0, 1, 2, 3, 4, 6, 8, 12], dtype=np.int16)
"""Twice e2m1's magnitudes."""


_E2M1_LEVELS = np.concatenate((_CENTRE + _MAGNITUDES, _CENTRE - _MAGNITUDES)).astype(np.uint8)
"""The levels that 4 bits stand for, of which the fourth is the sign."""


@dataclass(frozen=True)
class E2M1Matrix(LevelMatrix):
    """Numbers of type e2m1, with scales of a byte."""

    gguf: ClassVar[tuple[str, int]]
    """GGUF's type with the same numbers, and how many a block of it has."""
    first: int = field(default=0, kw_only=True)
    """The first row of a part of a matrix, in the whole."""

    @property
    def factor(self) -> np.float32:
        """What that type's numbers are to be multiplied by."""
        return np.float32(1)

    def row_range(self, rows: range) -> E2M1Matrix:
        return replace(self, outputs=len(rows), first=self.first + rows.start)

    @abstractmethod
    def codes(self, rows: range, columns: range) -> np.ndarray:
        """Reads [rows, columns] uint8, below 16."""

    @abstractmethod
    def scale_bytes(self, rows: range) -> np.ndarray:
        """Reads [rows, groups] uint8."""

    @abstractmethod
    def blocks(self, rows: range) -> np.ndarray:
        """Returns rows in GGUF's type, [rows, bytes] uint8, filled up to whole blocks with zeros:
        the scales, and for each half a group's numbers, whose low bits are the first half's."""

    @abstractmethod
    def halves(self, rows: range, columns: range, group: int) -> np.ndarray:
        """Reads [rows, groups, group / 2] uint8, each of a number of a group's first half and one
        of its second half, which is in the high bits. `columns`: whole groups."""

    def levels(self, rows: range, columns: range) -> np.ndarray:
        return _E2M1_LEVELS[self.codes(rows, columns)]

    def zeros(self, rows: range) -> np.ndarray:
        return np.full((len(rows), self.groups), _CENTRE, dtype=np.int32)


@dataclass(frozen=True)
class E2M1Pairs(E2M1Matrix):
    """Neighbours are two in a byte; a subclass says what a scale's byte means."""

    packed: SafetensorsTensor
    stored_scales: SafetensorsTensor

    def codes(self, rows: range, columns: range) -> np.ndarray:
        pairs = range(columns.start // 2, -(-columns.stop // 2))
        both = self.pairs(rows, pairs)
        codes = np.stack((both & 15, both >> 4), -1).reshape(len(rows), -1)
        return codes[:, columns.start - 2 * pairs.start : columns.stop - 2 * pairs.start]

    def halves(self, rows: range, columns: range, group: int) -> np.ndarray:
        return by_halves(self.pairs(rows, range(columns.start // 2, columns.stop // 2)), group)

    def pairs(self, rows: range, pairs: range) -> np.ndarray:
        """Reads the bytes of a part, [rows, pairs] uint8."""
        rows = shifted(rows, self.first)
        return integers(self.packed)[rows.start : rows.stop, pairs.start : pairs.stop]

    def scale_bytes(self, rows: range) -> np.ndarray:
        rows = shifted(rows, self.first)
        stored = self.stored_scales.data.view(np.uint8).reshape(self.stored_scales.shape)
        return stored[rows.start : rows.stop]

    def blocks(self, rows: range) -> np.ndarray:
        width = self.gguf[1]
        count, of_block = -(-self.inputs // width), width // self.group
        pairs = np.zeros((len(rows), count * width // 2), dtype=np.uint8)
        pairs[:, : self.inputs // 2] = self.pairs(rows, range(self.inputs // 2))
        both = by_halves(pairs, self.group)
        scales = np.zeros((len(rows), count * of_block), dtype=np.uint8)
        scales[:, : self.groups] = self.scale_bytes(rows)
        parts = (each.reshape(len(rows), count, -1) for each in (scales, both))
        return np.concatenate(tuple(parts), -1).reshape(len(rows), -1)


def by_halves(pairs: np.ndarray, group: int) -> np.ndarray:
    """Maps [rows, bytes], each of two neighbours, to [rows, groups, group / 2], each of a group's
    first and second half, whose number is in the high bits."""
    halves = pairs.reshape(len(pairs), -1, 2, group // 4)
    first, second = halves[:, :, 0], halves[:, :, 1]
    both = np.stack((first & 15 | second << 4, first >> 4 | second & 0xF0), -1)
    return both.reshape(len(pairs), -1, group // 2)


class MXFP4Matrix(E2M1Pairs):
    gguf = ("MXFP4", 32)

    def scales(self, rows: range) -> np.ndarray:
        return powers_of_two(self.scale_bytes(rows)) / 2


def _read_mxfp4(module: Module, scheme: WeightScheme) -> MXFP4Matrix | None:
    if scheme.group_size != _MXFP4_GROUP or not scheme.symmetric:
        return None
    name = next(each for each in E2M1_WEIGHTS if each in module.parts)
    packed = module.matrix(name, ("U8", "I8"))
    outputs, inputs = packed.shape[0], 2 * packed.shape[1]
    scale = "scale" if "scale" in module.parts else "weight_scale"
    return MXFP4Matrix(
        module.name,
        outputs,
        inputs,
        scheme.levels,
        bits=8,
        group=_MXFP4_GROUP,
        order=None,
        packed=msgspec.structs.replace(packed, dtype="U8"),
        stored_scales=module.take(scale, POWERS, (outputs, -(-inputs // _MXFP4_GROUP))),
    )


def _mxfp4_applies(module: Module) -> bool:
    own = {part: tensor.dtype for part, tensor in module.parts.items()}
    if own.get("weight") == "I8" and own.get("scale") == "F8_E8M0":
        return True
    if not any(module.parts[each].dtype == "U8" for each in E2M1_WEIGHTS if each in module.parts):
        return False
    scale = module.parts.get("weight_scale")
    return scale is None or scale.dtype == "U8"  # Else it is NVFP4.


MXFP4 = CheckpointFormat("mxfp4", _mxfp4_applies, _read_mxfp4)
