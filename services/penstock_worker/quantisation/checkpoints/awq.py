"""AWQ in the layout for GEMM kernels (AutoAWQ's WQLinear_GEMM).

`qweight` int32 [inputs, outputs / 8], `qzeros` int32 [groups, outputs / 8], `scales` [groups,
outputs]. A word has the 4-bit levels of eight neighbouring outputs; its nibbles, from the lowest,
are in the order of AWQ_ORDER.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.formats.safetensors_file import SafetensorsTensor
from penstock.model.quantised_checkpoint import WeightScheme
from penstock_worker.quantisation.checkpoints.matrix import LevelMatrix
from penstock_worker.quantisation.checkpoints.module import (
    FLOATS,
    CheckpointFormat,
    Module,
    float32,
    integers,
)

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The outputs that a word's nibbles belong to."""


@dataclass(frozen=True)
class AWQMatrix(LevelMatrix):
    qweight: SafetensorsTensor
    qzeros: SafetensorsTensor
    stored_scales: SafetensorsTensor

    def levels(self, rows: range, columns: range) -> np.ndarray:
        words = integers(self.qweight)[columns.start : columns.stop]
        return _outputs(words, rows)

    def scales(self, rows: range) -> np.ndarray:
        return float32(self.stored_scales, slice(None), slice(rows.start, rows.stop)).T

    def zeros(self, rows: range) -> np.ndarray:
        return _outputs(integers(self.qzeros), rows).astype(np.int32)


def _outputs(words: np.ndarray, rows: range) -> np.ndarray:
    """Unpacks the levels of some outputs: [n, all outputs / 8] int32 to [rows, n] uint8."""
    first, last = rows.start // 8, -(-rows.stop // 8)
    packed = np.ascontiguousarray(words[:, first:last]).view(np.uint8)
    packed = packed.T.reshape(last - first, 4, len(words))
    found = np.empty((last - first, 8, len(words)), dtype=np.uint8)
    for byte in range(4):
        found[:, AWQ_ORDER[2 * byte]] = packed[:, byte] & 15
        found[:, AWQ_ORDER[2 * byte + 1]] = packed[:, byte] >> 4
    return found.reshape(-1, len(words))[rows.start - 8 * first : rows.stop - 8 * first]


def _read_awq(module: Module, scheme: WeightScheme) -> AWQMatrix | None:
    qweight = module.matrix("qweight", ("I32",))
    inputs, outputs = qweight.shape[0], 8 * qweight.shape[1]
    group = scheme.group_size or inputs
    if inputs % group:
        raise module.wrong(f"has {inputs} inputs, which groups of {group} don't divide")
    groups = inputs // group
    qzeros, scales = module.take("qzeros", ("I32",)), module.take("scales", FLOATS)
    if qzeros.shape != (groups, outputs // 8) or scales.shape != (groups, outputs):
        return None
    return AWQMatrix(
        module.name,
        outputs,
        inputs,
        scheme.levels,
        bits=4,
        group=group,
        order=None,
        qweight=qweight,
        qzeros=qzeros,
        stored_scales=scales,
    )


AWQ = CheckpointFormat("awq", lambda module: "qweight" in module.parts, _read_awq)
