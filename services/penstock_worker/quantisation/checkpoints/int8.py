"""compressed-tensors' int-quantized: the weights of INT8 W8A8.

`weight` int8 [outputs, inputs]; `weight_scale` [outputs, groups], [outputs, 1] or [1]; where not
symmetric, `weight_zero_point` int8 in the scale's shape. Activations stay unquantised, unless the
kernels have their own way to quantise them, so an `input_scale` isn't needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.formats.safetensors_file import SafetensorsTensor
from penstock.model.quantised_checkpoint import WeightScheme
from penstock_worker.quantisation.checkpoints.matrix import LevelMatrix
from penstock_worker.quantisation.checkpoints.module import CheckpointFormat, Module, integers
from penstock_worker.quantisation.checkpoints.packed import checked_scales, row_scales

_CENTRE = 128


@dataclass(frozen=True)
class Int8Matrix(LevelMatrix):
    weight: SafetensorsTensor
    stored_scales: SafetensorsTensor
    stored_zeros: SafetensorsTensor | None

    def levels(self, rows: range, columns: range) -> np.ndarray:
        signed = integers(self.weight)[rows.start : rows.stop, columns.start : columns.stop]
        # Two's complement with its sign flipped is the value plus 128.
        return signed.view(np.uint8) ^ _CENTRE

    def scales(self, rows: range) -> np.ndarray:
        return row_scales(self.stored_scales, rows)

    def zeros(self, rows: range) -> np.ndarray:
        if self.stored_zeros is None:
            return np.full((len(rows), self.groups), _CENTRE, dtype=np.int32)
        stored = integers(self.stored_zeros).astype(np.int32) + _CENTRE
        if stored.size == 1:
            return np.broadcast_to(stored.reshape(1, 1), (len(rows), 1))
        return stored[rows.start : rows.stop].reshape(len(rows), -1)


def _read(module: Module, scheme: WeightScheme) -> Int8Matrix | None:
    weight = module.matrix("weight", ("I8",))
    outputs, inputs = weight.shape
    scales = checked_scales(module, outputs, inputs, scheme)
    module.find("input_scale", ("F32", "F16", "BF16"))
    module.find("input_zero_point", ("I8", "F32", "F16", "BF16"))
    zeros = module.find("weight_zero_point", ("I8",))
    if scales is None or (zeros is None and not scheme.symmetric):
        return None
    if zeros is not None:
        module.take("weight_zero_point", ("I8",), scales.shape)
    return Int8Matrix(
        module.name,
        outputs,
        inputs,
        scheme.levels,
        bits=8,
        group=scheme.group_size or inputs,
        order=None,
        weight=weight,
        stored_scales=scales,
        stored_zeros=zeros,
    )


def _applies(module: Module) -> bool:
    return "weight" in module.parts and module.parts["weight"].dtype == "I8"


INT8_WEIGHTS = CheckpointFormat("int8", _applies, _read)
