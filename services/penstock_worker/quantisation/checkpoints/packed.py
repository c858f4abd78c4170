"""compressed-tensors' pack-quantized: W4A16 and W8A16.

`weight_packed` int32 [outputs, inputs * bits / 32]; `weight_scale` [outputs, groups], [outputs, 1]
or [1]; `weight_shape` the two sizes; where not symmetric, `weight_zero_point` int32 [outputs * bits
/ 32, groups], packed along the outputs (int8 [outputs, groups] in older files); for act-order,
`weight_g_idx` int32 [inputs]. Signed levels and zero points are stored plus 2^(bits - 1).
"""

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
from penstock_worker.quantisation.checkpoints.words import across_rows, along_rows, words_of


@dataclass(frozen=True)
class PackQuantizedMatrix(LevelMatrix):
    packed: SafetensorsTensor
    stored_scales: SafetensorsTensor
    stored_zeros: SafetensorsTensor | None

    def levels(self, rows: range, columns: range) -> np.ndarray:
        return along_rows(integers(self.packed), self.bits, rows, columns)

    def scales(self, rows: range) -> np.ndarray:
        return row_scales(self.stored_scales, rows)

    def zeros(self, rows: range) -> np.ndarray:
        stored = self.stored_zeros
        if stored is None:
            return np.full((len(rows), self.groups), self.centre, dtype=np.int32)
        if stored.dtype == "I8":
            return integers(stored)[rows.start : rows.stop].astype(np.int32) + self.centre
        found = across_rows(integers(stored), self.bits, rows, range(self.groups))
        return found.astype(np.int32)


def row_scales(stored: SafetensorsTensor, rows: range) -> np.ndarray:
    """Reads scales of [outputs, groups], [outputs], or of one number, as [rows, groups]."""
    if stored.data.size == float_bytes(stored):
        one = float32(stored).reshape(1, 1)
        return np.broadcast_to(one, (len(rows), 1))
    return float32(stored, slice(rows.start, rows.stop)).reshape(len(rows), -1)


def float_bytes(stored: SafetensorsTensor) -> int:
    """Returns the bytes of one element."""
    return {"F32": 4, "F16": 2, "BF16": 2, "F8_E8M0": 1}[stored.dtype]


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


def _read(module: Module, scheme: WeightScheme) -> PackQuantizedMatrix | None:
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
        bits=scheme.bits,
        group=group,
        order=group_order(module, "weight_g_idx", inputs, group, required=scheme.act_order),
        packed=packed,
        stored_scales=scales,
        stored_zeros=zeros,
    )


PACKED = CheckpointFormat("packed", lambda module: "weight_packed" in module.parts, _read)
