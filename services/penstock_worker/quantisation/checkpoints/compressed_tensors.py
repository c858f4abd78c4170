"""Formats of the compressed-tensors library."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.formats.safetensors_file import SafetensorsTensor
from penstock.model.quantised_checkpoint import WeightScheme
from penstock_worker.quantisation.checkpoints.gptq import group_order
from penstock_worker.quantisation.checkpoints.matrix import LevelMatrix
from penstock_worker.quantisation.checkpoints.module import (
    FLOATS,
    CheckpointFormat,
    Module,
    float32,
    integers,
)
from penstock_worker.quantisation.checkpoints.packed_words import across_rows, along_rows, words_of


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
