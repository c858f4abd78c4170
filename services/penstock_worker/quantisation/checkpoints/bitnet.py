"""Ternary weights as the transformers library saves BitNet's (Ma et al., "The era of 1-bit LLMs",
2024).

`weight` uint8 [outputs / 4, inputs] has two bits of each of four weights, one more than -1, 0 or 1.
The first quarter of the outputs is in the lowest bits of all bytes, the next one in those above
them, and so on. `weight_scale`, one number, multiplies the whole matrix (`autobitlinear`, with
which Microsoft's release is saved), or divides it (`bitlinear`).

The makers' code also rounds each row of activations to 8 bits. As with other methods, activations
stay unquantised here, unless the kernels have their own way to quantise them.
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

_IN_A_BYTE = 4
_BITS = 2
_ZERO = 1
"""The level that stands for 0."""


@dataclass(frozen=True)
class TernaryMatrix(LevelMatrix):
    packed: SafetensorsTensor
    scale: float

    def levels(self, rows: range, columns: range) -> np.ndarray:
        quarter, row = np.divmod(np.arange(rows.start, rows.stop), self.packed.shape[0])
        stored = integers(self.packed)[row, columns.start : columns.stop]
        found = stored >> (_BITS * quarter).astype(np.uint8)[:, None] & np.uint8(3)
        if found.size and int(found.max()) > _ZERO + 1:
            raise Module(self.name, {}).wrong("has weights other than -1, 0 and 1")
        return found

    def scales(self, rows: range) -> np.ndarray:
        return np.full((len(rows), 1), self.scale, dtype=np.float32)

    def zeros(self, rows: range) -> np.ndarray:
        return np.full((len(rows), 1), _ZERO, dtype=np.int32)


def _read(module: Module, scheme: WeightScheme) -> TernaryMatrix:
    packed = module.matrix("weight", ("U8",))
    scale = float32(module.take("weight_scale", FLOATS, (1,)))[0]
    if not np.isfinite(scale) or not scale > 0:
        raise module.wrong(f"has the scale {scale}; a positive number is needed")
    outputs, inputs = _IN_A_BYTE * packed.shape[0], packed.shape[1]
    return TernaryMatrix(
        module.name,
        outputs,
        inputs,
        scheme.levels,
        bits=scheme.held_bits,
        group=inputs,
        order=None,
        packed=packed,
        scale=float(np.float32(1) / scale if scheme.scale_divides else scale),
    )


def _applies(module: Module) -> bool:
    return "weight" in module.parts and module.parts["weight"].dtype == "U8"


TERNARY = CheckpointFormat("ternary", _applies, _read)
