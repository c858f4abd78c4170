"""HQQ (Badri and Shaji, "Half-quadratic quantization", 2023), as the transformers library saves it.

The matrix is cut into groups of neighbouring inputs, [outputs * groups, inputs of a group], of
which `W_q` uint8 packs rows that lie far apart: the first part of the rows has the highest bits of
its bytes. `scale` and `zero` [outputs * groups, 1] belong to the groups; zero points need not be
whole. `shape` has the two sizes. Other tensors repeat the settings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.formats.safetensors_file import SafetensorsTensor
from penstock.model.quantised_checkpoint import WeightScheme
from penstock_worker.quantisation.checkpoints.matrix import LevelMatrix, finite
from penstock_worker.quantisation.checkpoints.module import (
    FLOATS,
    CheckpointFormat,
    Module,
    float32,
    integers,
)

_SETTINGS = (
    "axis",
    "channel_wise",
    "compute_dtype",
    "encoded_state_dict",
    "group_size",
    "nbits",
    "offload_meta",
    "optimize",
    "packing",
    "round_zero",
    "stores_quant_config",
    "unpack_view_dtype",
    "view_as_float",
)
_TWICE_QUANTISED = ("quant_scale", "quant_zero")


@dataclass(frozen=True)
class HQQMatrix(LevelMatrix):
    packed: SafetensorsTensor
    stored_scales: SafetensorsTensor
    stored_zeros: SafetensorsTensor
    stored_bits: int

    def levels(self, rows: range, columns: range) -> np.ndarray:
        part, row = np.divmod(self._groups_of(rows), self.packed.shape[0])
        shifts = (8 - self.stored_bits * (part + 1)).astype(np.uint8)
        mask = np.uint8((1 << self.stored_bits) - 1)
        found = (integers(self.packed)[row] >> shifts[:, None]) & mask
        return found.reshape(len(rows), -1)[:, columns.start : columns.stop]

    def scales(self, rows: range) -> np.ndarray:
        return float32(self.stored_scales)[self._groups_of(rows)].reshape(len(rows), -1)

    def zeros(self, rows: range) -> np.ndarray:
        found = float32(self.stored_zeros)[self._groups_of(rows)].reshape(len(rows), -1)
        return finite(found, self.name, "zero point")

    def _groups_of(self, rows: range) -> np.ndarray:
        return np.arange(rows.start * self.groups, rows.stop * self.groups)


def _read(module: Module, scheme: WeightScheme) -> HQQMatrix | None:
    packed = module.matrix("W_q", ("U8",))
    sizes = integers(module.take("shape", ("I64", "I32"), (2,)))
    outputs, inputs = (int(size) for size in sizes)
    if min(outputs, inputs) < 1:
        raise module.wrong(f"says that it is {outputs} x {inputs}")
    for part in _SETTINGS:
        module.find(part, ("U8", "I32", "I64", "F32", "BOOL"))
    for part in _TWICE_QUANTISED:
        found = module.find(part, ("U8", "BOOL"))
        if found is not None and found.data.any():
            raise module.wrong(f"has quantised scales or zero points ({part})")
    group = scheme.group_size or inputs
    count = outputs * inputs // group
    scales, zeros = module.take("scale", FLOATS), module.take("zero", FLOATS)
    sound = scales.shape == zeros.shape == (count, 1) and inputs % group == 0
    if not sound or packed.shape != (count * scheme.bits // 8, group):
        return None
    return HQQMatrix(
        module.name,
        outputs,
        inputs,
        scheme.levels,
        bits=scheme.held_bits,
        group=group,
        order=None,
        packed=packed,
        stored_scales=scales,
        stored_zeros=zeros,
        stored_bits=scheme.bits,
    )


HQQ = CheckpointFormat("hqq", lambda module: "W_q" in module.parts, _read)
