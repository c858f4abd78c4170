"""NVFP4 weights: e2m1 numbers, of which 16 neighbours share a scale of type e4m3, and all scales of
a matrix a factor (NVIDIA, "Pretraining large language models with NVFP4", 2025).

`weight` (Model Optimizer) or `weight_packed` (compressed-tensors) uint8 [outputs, inputs / 2], two
numbers in a byte, the first in its low bits; `weight_scale` e4m3 [outputs, inputs / 16]; and one
float32: `weight_scale_2`, by which scales are multiplied, or `weight_global_scale`, by which they
are divided. Activations aren't quantised, so `input_scale` and `input_global_scale` aren't needed.

Where Model Optimizer means activations to be FP8, 32 neighbours share a scale: two groups have it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.model.quantised_checkpoint import WeightScheme
from penstock_worker.quantisation.checkpoints.fp8 import E4M3
from penstock_worker.quantisation.checkpoints.matrix import finite, shifted
from penstock_worker.quantisation.checkpoints.module import CheckpointFormat, Module, float32
from penstock_worker.quantisation.checkpoints.mxfp4 import E2M1_WEIGHTS, E2M1Matrix, E2M1Pairs

_GROUP = 16


@dataclass(frozen=True)
class NVFP4Matrix(E2M1Pairs):
    gguf = ("NVFP4", 64)
    stored_factor: np.float32
    divides: bool
    """Whether scales are divided by the factor, else they are multiplied by it."""
    sharing: int
    """How many neighbouring groups share a scale."""

    @property
    def factor(self) -> np.float32:
        return 1 / self.stored_factor if self.divides else self.stored_factor

    def pairs(self, rows: range, pairs: range) -> np.ndarray:
        """Numbers have their scales' signs, too."""
        found, signs = super().pairs(rows, pairs), self._signed_scales(rows) >> 7
        if not signs.any():
            return found
        of_group = np.arange(pairs.start, pairs.stop) * 2 // self.group
        return found ^ (signs * 0x88)[:, of_group]

    def scale_bytes(self, rows: range) -> np.ndarray:
        return self._signed_scales(rows) & 127

    def _signed_scales(self, rows: range) -> np.ndarray:
        return super().scale_bytes(rows).repeat(self.sharing, 1)[:, : self.groups]

    def scales(self, rows: range) -> np.ndarray:
        scales = E4M3[self.scale_bytes(rows)] / 2  # Levels are twice the numbers.
        return scales / self.stored_factor if self.divides else scales * self.stored_factor


def _read(module: Module, scheme: WeightScheme) -> NVFP4Matrix | None:
    size = scheme.group_size
    if size is None or size % _GROUP or not scheme.symmetric:
        return None
    packed = module.matrix(next(each for each in E2M1_WEIGHTS if each in module.parts), ("U8",))
    outputs, inputs = packed.shape[0], 2 * packed.shape[1]
    for unused in ("input_scale", "input_global_scale"):
        module.find(unused, ("F32",))
    scales = module.take("weight_scale", ("F8_E4M3",))
    if scales.shape != (outputs, -(-inputs // size)):
        return None
    return NVFP4Matrix(
        module.name,
        outputs,
        inputs,
        scheme.levels,
        bits=8,
        group=_GROUP,
        order=None,
        packed=packed,
        stored_scales=scales,
        stored_factor=_factor(module),
        divides="weight_global_scale" in module.parts,
        sharing=size // _GROUP,
    )


def _factor(module: Module) -> np.float32:
    found = module.find("weight_global_scale", ("F32",)) or module.take("weight_scale_2", ("F32",))
    value = finite(float32(found).reshape(-1), module.name)
    with np.errstate(over="ignore"):
        sound = value.size == 1 and value[0] > 0 and np.isfinite(1 / value[0])
    if not sound:
        raise module.wrong(f"has a {found.name} that isn't one positive number")
    return np.float32(value[0])


def _applies(module: Module) -> bool:
    scale = module.parts.get("weight_scale")
    return (
        scale is not None
        and scale.dtype == "F8_E4M3"
        and any(module.parts[each].dtype == "U8" for each in E2M1_WEIGHTS if each in module.parts)
    )


NVFP4 = CheckpointFormat("nvfp4", _applies, _read)


_BLOCK = 36
"""Bytes."""


@dataclass(frozen=True)
class NVFP4Blocks(E2M1Matrix):
    """NVFP4 in GGUF files: blocks of 64 numbers, four scales before four times 16 numbers, whose
    low bits are the first 8. Scales have no sign. A tensor `.scale` next to the matrix may hold
    the factor."""

    gguf = ("NVFP4", 64)
    data: np.ndarray
    """uint8 [outputs of the whole matrix, bytes of a row]."""
    stored_factor: np.float32

    @staticmethod
    def of(name: str, shape: tuple[int, int], data: np.ndarray, factor: float) -> NVFP4Blocks:
        """`data`: the matrix's bytes in the file. Raises UnsupportedModel for a factor that isn't
        finite."""
        by_row = data.reshape(shape[0], -1)
        stored = finite(np.array([factor], np.float32), name)[0]
        return NVFP4Blocks(name, *shape, "NVFP4", 8, _GROUP, None, by_row, stored)

    @property
    def factor(self) -> np.float32:
        return self.stored_factor

    def blocks(self, rows: range) -> np.ndarray:
        rows = shifted(rows, self.first)
        return self.data[rows.start : rows.stop]

    def codes(self, rows: range, columns: range) -> np.ndarray:
        both = self.blocks(rows).reshape(len(rows), -1, _BLOCK)[..., 4:].reshape(len(rows), -1, 8)
        codes = np.concatenate((both & 15, both >> 4), -1).reshape(len(rows), -1)
        return codes[:, columns.start : columns.stop]

    def halves(self, rows: range, columns: range, group: int) -> np.ndarray:
        codes = self.codes(rows, columns).reshape(len(rows), -1, 2, group // 2)
        return codes[:, :, 0] | codes[:, :, 1] << 4

    def scale_bytes(self, rows: range) -> np.ndarray:
        """What isn't a number is 0, as ggml has it."""
        found = self.blocks(rows).reshape(len(rows), -1, _BLOCK)[..., :4].reshape(len(rows), -1)
        return np.where(found & 127 == 127, 0, found & 127).astype(np.uint8)

    def scales(self, rows: range) -> np.ndarray:
        return E4M3[self.scale_bytes(rows)] / 2 * self.stored_factor
