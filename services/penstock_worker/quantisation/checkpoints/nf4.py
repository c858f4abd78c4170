"""NF4 (Dettmers et al., "QLoRA", 2023) as bitsandbytes stores it, and its FP4, which differs by the
numbers that codes stand for.

`weight` uint8 [outputs * inputs / 2, 1], or the same bytes as numbers of another type, two codes in
a byte, the first in its high bits;
`weight.quant_map` float32 [16], the number for each code; `weight.absmax`, a scale for each block
of the flattened matrix. With double quantisation, `absmax` is uint8: an index of
`weight.nested_quant_map`, times the `weight.nested_absmax` of its block of scales, plus an offset.
`weight.quant_state.bitsandbytes__nf4` (`…fp4`) is JSON: shape, block sizes and offset.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch

from penstock.model.quantised_checkpoint import WeightScheme
from penstock_worker.quantisation.checkpoints.matrix import CheckpointMatrix, finite, shifted
from penstock_worker.quantisation.checkpoints.module import (
    FLOATS,
    CheckpointFormat,
    Module,
    float32,
    integers,
)

if TYPE_CHECKING:
    from torch import Tensor

_STATES = tuple(f"weight.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))
_STORED = ("U8", *FLOATS)
_MOST_STATE = 1 << 16
"""Bytes of JSON that a state may have."""


class _State(msgspec.Struct):
    """What isn't a tensor. Other fields say what the quantiser computed in."""

    shape: tuple[int, int]
    blocksize: int
    nested_blocksize: int = 256
    nested_offset: float = 0.0


@dataclass(frozen=True)
class NF4Matrix(CheckpointMatrix):
    module: Module
    state: _State
    first: int = 0
    """The first row of a part of a matrix, in the whole."""

    def row_range(self, rows: range) -> NF4Matrix:
        return replace(self, outputs=len(rows), first=self.first + rows.start)

    def values(self, rows: range, columns: range) -> Tensor:
        rows = shifted(rows, self.first)
        first, last = rows.start * self.inputs, rows.stop * self.inputs
        stored = self.module.take("weight", _STORED).data.view(np.uint8).reshape(-1)
        both = stored[first // 2 : -(-last // 2)]
        codes = np.stack((both >> 4, both & 15), -1).reshape(-1)[first % 2 :][: last - first]
        numbers = float32(self.module.take("weight.quant_map", ("F32",)))[codes]
        blocks = np.arange(first, last) // self.state.blocksize
        scales = self._scales(int(blocks[0]), int(blocks[-1]) + 1)
        found = (numbers * scales[blocks - blocks[0]]).reshape(len(rows), -1)
        return torch.from_numpy(found[:, columns.start : columns.stop])

    def _scales(self, first: int, last: int) -> np.ndarray:
        absmax = self.module.take("weight.absmax", ("F32", "U8"))
        if absmax.dtype == "F32":
            return finite(float32(absmax, slice(first, last)), self.name)
        codes = integers(absmax)[first:last]
        numbers = float32(self.module.take("weight.nested_quant_map", ("F32",)))
        nested = float32(self.module.take("weight.nested_absmax", ("F32",)))
        places = np.arange(first, last) // self.state.nested_blocksize
        scales = numbers[codes] * nested[places] + np.float32(self.state.nested_offset)
        return finite(scales, self.name)


def _read(module: Module, scheme: WeightScheme) -> NF4Matrix:
    state = _state(module)
    outputs, inputs = state.shape
    blocks = -(-outputs * inputs // state.blocksize)
    if module.take("weight", _STORED).data.nbytes != -(-outputs * inputs // 2):
        raise module.wrong(f"has another number of bytes than {outputs} x {inputs} weights need")
    module.take("weight.quant_map", ("F32",), (16,))
    absmax = module.take("weight.absmax", ("F32", "U8"), (blocks,))
    if absmax.dtype == "U8":
        module.take("weight.nested_quant_map", ("F32",), (256,))
        module.take("weight.nested_absmax", ("F32",), (-(-blocks // state.nested_blocksize),))
    return NF4Matrix(module.name, outputs, inputs, scheme.levels, module, state)


def _state(module: Module) -> _State:
    name = next(each for each in _STATES if each in module.parts)
    stored = module.take(name, ("U8",))
    if stored.data.size > _MOST_STATE:
        raise module.wrong(f"has {stored.data.size} bytes in {name}; {_MOST_STATE} are allowed")
    try:
        state = msgspec.json.decode(stored.data.tobytes(), type=_State)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise module.wrong(f"has a {name} that can't be read: {error}") from None
    sizes = (*state.shape, state.blocksize, state.nested_blocksize)
    if min(sizes) < 1 or max(sizes) > 1 << 31 or not math.isfinite(state.nested_offset):
        raise module.wrong(f"has sizes {sizes} in {name}")
    return state


NF4 = CheckpointFormat("nf4", lambda module: _STATES[0] in module.parts, _read)
FP4 = CheckpointFormat("fp4", lambda module: _STATES[1] in module.parts, _read)
