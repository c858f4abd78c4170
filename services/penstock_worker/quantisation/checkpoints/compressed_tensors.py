"""Formats of the compressed-tensors library."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar

import msgspec
import numpy as np

from penstock.formats.safetensors_file import SafetensorsTensor
from penstock.model.quantised_checkpoint import WeightScheme
from penstock_worker.quantisation.checkpoints.gptq import (
    across_rows,
    along_rows,
    group_order,
    words_of,
)
from penstock_worker.quantisation.checkpoints.matrix import LevelMatrix, shifted
from penstock_worker.quantisation.checkpoints.module import (
    FLOATS,
    POWERS,
    CheckpointFormat,
    Module,
    float32,
    integers,
    powers_of_two,
)

# compressed-tensors' pack-quantized: W4A16, W8A16, and other numbers of bits.
#
# `weight_packed` int32 [outputs, inputs * bits / 32]; `weight_scale` [outputs, groups], [outputs,
# 1] or [1]; `weight_shape` the two sizes; where not symmetric, `weight_zero_point` int32 [outputs
# * bits / 32, groups], packed along the outputs (int8 [outputs, groups] in older files); for act-
# order, `weight_g_idx` int32 [inputs]. Signed levels and zero points are stored plus 2^(bits - 1).


@dataclass(frozen=True)
class PackQuantizedMatrix(LevelMatrix):
    packed: SafetensorsTensor
    stored_scales: SafetensorsTensor
    stored_zeros: SafetensorsTensor | None

    stored_bits: int

    def levels(self, rows: range, columns: range) -> np.ndarray:
        return along_rows(integers(self.packed), self.stored_bits, rows, columns)

    def scales(self, rows: range) -> np.ndarray:
        return row_scales(self.stored_scales, rows)

    def zeros(self, rows: range) -> np.ndarray:
        stored, centre = self.stored_zeros, 1 << (self.stored_bits - 1)
        if stored is None:
            return np.full((len(rows), self.groups), centre, dtype=np.int32)
        if stored.dtype == "I8":
            return integers(stored)[rows.start : rows.stop].astype(np.int32) + centre
        found = across_rows(integers(stored), self.stored_bits, rows, range(self.groups))
        return found.astype(np.int32)


def row_scales(stored: SafetensorsTensor, rows: range) -> np.ndarray:
    """Reads scales of [outputs, groups], [outputs], or of one number, as [rows, groups]."""
    if stored.data.size == float_bytes(stored):
        one = float32(stored).reshape(1, 1)
        return np.broadcast_to(one, (len(rows), 1))
    return float32(stored, slice(rows.start, rows.stop)).reshape(len(rows), -1)


def float_bytes(stored: SafetensorsTensor) -> int:
    """Returns the bytes of one element."""
    return {"F32": 4, "F16": 2, "BF16": 2}.get(stored.dtype, 1)


def checked_scales(
    module: Module, outputs: int, inputs: int, scheme: WeightScheme
) -> SafetensorsTensor | None:
    """Returns `weight_scale`; None if its shape is that of another scheme."""
    scales = module.take("weight_scale", FLOATS)
    if scheme.group_size is not None:
        fits = scales.shape == (outputs, -(-inputs // scheme.group_size))
    else:
        fits = scales.shape in ((outputs, 1), (outputs,), (1,), (), (1, 1))
    return scales if fits else None


def _read_packed(module: Module, scheme: WeightScheme) -> PackQuantizedMatrix | None:
    packed = module.matrix("weight_packed", ("I32",))
    sizes = integers(module.take("weight_shape", ("I64", "I32"), (2,)))
    outputs, inputs = (int(size) for size in sizes)
    if inputs < 1 or outputs != packed.shape[0]:
        raise module.wrong(f"has shape {packed.shape}, and says that it is {outputs} x {inputs}")
    scales = checked_scales(module, outputs, inputs, scheme)
    if packed.shape[1] != words_of(inputs, scheme.bits) or scales is None:
        return None
    group = scheme.group_size or inputs
    groups = -(-inputs // group)
    zeros = module.find("weight_zero_point", ("I32", "I8"))
    if (zeros is None) != scheme.symmetric:
        return None
    if zeros is not None:
        lines = outputs if zeros.dtype == "I8" else words_of(outputs, scheme.bits)
        module.take("weight_zero_point", ("I32", "I8"), (lines, groups))
    return PackQuantizedMatrix(
        module.name,
        outputs,
        inputs,
        scheme.levels,
        bits=scheme.held_bits,
        group=group,
        order=group_order(module, "weight_g_idx", inputs, group, required=scheme.act_order),
        packed=packed,
        stored_scales=scales,
        stored_zeros=zeros,
        stored_bits=scheme.bits,
    )


PACKED = CheckpointFormat("packed", lambda module: "weight_packed" in module.parts, _read_packed)


# Model Optimizer's INT4.
#
# `weight` uint8 [outputs / 2, inputs], two outputs in a byte, the first in its low bits, in two's
# complement; `weight_scale` [outputs, groups]. (`weight_scale_2` is for products in FP8.)


@dataclass(frozen=True)
class Int4Matrix(LevelMatrix):
    weight: SafetensorsTensor
    stored_scales: SafetensorsTensor

    def levels(self, rows: range, columns: range) -> np.ndarray:
        first, last = rows.start // 2, -(-rows.stop // 2)
        both = integers(self.weight)[first:last, columns.start : columns.stop]
        codes = np.stack((both & 15, both >> 4), 1).reshape(-1, len(columns))
        # Two's complement with its sign flipped is the value plus 8.
        return codes[rows.start - 2 * first : rows.stop - 2 * first] ^ self.centre

    def scales(self, rows: range) -> np.ndarray:
        return row_scales(self.stored_scales, rows)

    def zeros(self, rows: range) -> np.ndarray:
        return np.full((len(rows), self.groups), self.centre, dtype=np.int32)


def _read_int4(module: Module, scheme: WeightScheme) -> Int4Matrix | None:
    weight = module.matrix("weight", ("U8",))
    outputs, inputs = 2 * weight.shape[0], weight.shape[1]
    scales = checked_scales(module, outputs, inputs, scheme)
    for unused in ("input_scale", "weight_scale_2"):
        module.find(unused, FLOATS)
    if scales is None:
        return None
    return Int4Matrix(
        module.name,
        outputs,
        inputs,
        scheme.levels,
        bits=4,
        group=scheme.group_size or inputs,
        order=None,
        weight=weight,
        stored_scales=scales,
    )


def _int4_applies(module: Module) -> bool:
    weight, scales = (module.parts.get(part) for part in ("weight", "weight_scale"))
    return weight is not None and weight.dtype == "U8" and (not scales or scales.dtype in FLOATS)


INT4_WEIGHTS = CheckpointFormat("int4", _int4_applies, _read_int4)


# compressed-tensors' int-quantized: the weights of INT8 W8A8, and of W4A8, in a byte each.
#
# `weight` int8 [outputs, inputs]; `weight_scale` [outputs, groups], [outputs, 1] or [1]; where not
# symmetric, `weight_zero_point` int8 in the scale's shape. Activations stay unquantised, unless the
# kernels have their own way to quantise them, so an `input_scale` isn't needed.
#
# bitsandbytes' LLM.int8 (Dettmers et al., 2022) has the largest magnitude of each output instead of
# its scale, as `SCB` float32 [outputs]. Its outliers are a matter of activations.

_LARGEST = "SCB"


@dataclass(frozen=True)
class Int8Matrix(LevelMatrix):
    weight: SafetensorsTensor
    stored_scales: SafetensorsTensor
    stored_zeros: SafetensorsTensor | None

    def levels(self, rows: range, columns: range) -> np.ndarray:
        signed = integers(self.weight)[rows.start : rows.stop, columns.start : columns.stop]
        found = signed.view(np.uint8) + np.uint8(self.centre)
        if found.size and int(found.max()) >> self.bits:
            raise Module(self.name, {}).wrong(f"has weights of more than {self.bits} bits")
        return found

    def scales(self, rows: range) -> np.ndarray:
        return row_scales(self.stored_scales, rows)

    def zeros(self, rows: range) -> np.ndarray:
        if self.stored_zeros is None:
            return np.full((len(rows), self.groups), self.centre, dtype=np.int32)
        stored = integers(self.stored_zeros).astype(np.int32) + self.centre
        if stored.size == 1:
            return np.broadcast_to(stored.reshape(1, 1), (len(rows), 1))
        return stored[rows.start : rows.stop].reshape(len(rows), -1)


class LLMInt8Matrix(Int8Matrix):
    def scales(self, rows: range) -> np.ndarray:
        return row_scales(self.stored_scales, rows) * np.float32(1 / 127)


def _read_int8(module: Module, scheme: WeightScheme) -> Int8Matrix | None:
    weight = module.matrix("weight", ("I8",))
    outputs, inputs = weight.shape
    kind = LLMInt8Matrix if _LARGEST in module.parts else Int8Matrix
    if kind is LLMInt8Matrix:
        scales: SafetensorsTensor | None = module.take(_LARGEST, ("F32",), (outputs,))
        form = module.find("weight_format", ("U8",))
        if form is not None and form.data.any():
            raise module.wrong("has a weight_format other than rows, which no library writes now")
    else:
        scales = checked_scales(module, outputs, inputs, scheme)
    module.find("input_scale", ("F32", "F16", "BF16"))
    module.find("input_zero_point", ("I8", "F32", "F16", "BF16"))
    zeros = module.find("weight_zero_point", ("I8",))
    if scales is None or (zeros is None and not scheme.symmetric):
        return None
    if zeros is not None:
        module.take("weight_zero_point", ("I8",), scales.shape)
    return kind(
        module.name,
        outputs,
        inputs,
        scheme.levels,
        bits=scheme.held_bits,
        group=scheme.group_size or inputs,
        order=None,
        weight=weight,
        stored_scales=scales,
        stored_zeros=zeros,
    )


def _int8_applies(module: Module) -> bool:
    return "weight" in module.parts and module.parts["weight"].dtype == "I8"


INT8_WEIGHTS = CheckpointFormat("int8", _int8_applies, _read_int8)


# MXFP4 in compressed-tensors' layout (OCP microscaling formats, 2023).
#
# `weight_packed` (Model Optimizer: `weight`) uint8 [outputs, inputs / 2], two numbers of type e2m1
# in a byte, the first in its low bits; `weight_scale` uint8 [outputs, inputs / 32], powers of two
# (e8m0). In DeepSeek-V4's experts these are `weight` int8 and `scale` e8m0.
#
# Twice a number is a whole one, so these are signed levels with half the scale: no rounding.

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
