"""GPTQ and AWQ, as AutoRound has them too: levels of a few bits in 32-bit words, with zero
points."""

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

# Levels of 2 to 8 bits that are packed into 32-bit words, the first in the lowest bits. 32 levels
# fill as many words as they have bits.


def words_of(count: int, bits: int) -> int:
    """Returns how many words hold `count` levels."""
    return -(-count * bits // 32)


def unpacked(words: np.ndarray, bits: int) -> np.ndarray:
    """Unpacks 32-bit integers [rows, words] to uint8 [rows, words * 32 / bits]. `words` need be
    neither aligned nor contiguous."""
    packed = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return packed
    if bits in _SHIFTS:
        return ((packed[:, :, None] >> _SHIFTS[bits]) & ((1 << bits) - 1)).reshape(len(packed), -1)
    # What is left of the last word holds no level.
    stream = np.unpackbits(packed, axis=1, bitorder="little")
    each = stream[:, : stream.shape[1] // bits * bits].reshape(len(packed), -1, bits)
    return np.packbits(each, axis=2, bitorder="little")[:, :, 0]


_SHIFTS = {bits: np.arange(0, 8, bits, dtype=np.uint8) for bits in (2, 4)}
"""The places of a byte's levels, of bits that divide a byte."""


def along_rows(words: np.ndarray, bits: int, rows: range, columns: range) -> np.ndarray:
    """Unpacks a part of levels that are packed along the second dimension: [rows, columns] uint8 of
    words [all rows, words]."""
    # The fewest words that begin and end with a level.
    step, per = (1, 32 // bits) if 32 % bits == 0 else (bits, 32)
    first, last = columns.start // per, -(-columns.stop // per)
    found = unpacked(words[rows.start : rows.stop, first * step : last * step], bits)
    return found[:, columns.start - first * per : columns.stop - first * per]


def across_rows(words: np.ndarray, bits: int, rows: range, columns: range) -> np.ndarray:
    """Unpacks as along_rows does, but levels that are packed along the first dimension: words
    [words, all columns]."""
    return along_rows(words.T, bits, columns, rows).T


# GPTQ (AutoGPTQ's and GPTQModel's quantised linear layers).
#
# `qweight` int32 [inputs * bits / 32, outputs], packed along the inputs; `qzeros` int32 [groups,
# outputs * bits / 32], packed along the outputs; `scales` [groups, outputs]; `g_idx` int32
# [inputs], the group of each input.
#
# The first format stores zero points minus one. GPTQModel takes one from each number of a whole
# word at once, so that a zero point of 0 borrows from the next number; adding the same gives all
# of them back. (AutoGPTQ can't store 0: its own files have none.)

_ONES = {
    2: np.uint32(0x55555555),
    4: np.uint32(0x11111111),
    8: np.uint32(0x01010101),
}
"""A word whose numbers are all 1, by their bits. Those of other bits don't end with a word."""


@dataclass(frozen=True)
class GPTQMatrix(LevelMatrix):
    qweight: SafetensorsTensor
    qzeros: SafetensorsTensor
    stored_scales: SafetensorsTensor
    zeros_less_one: bool
    stored_bits: int

    def levels(self, rows: range, columns: range) -> np.ndarray:
        return across_rows(integers(self.qweight), self.stored_bits, columns, rows).T

    def scales(self, rows: range) -> np.ndarray:
        return float32(self.stored_scales, slice(None), slice(rows.start, rows.stop)).T

    def zeros(self, rows: range) -> np.ndarray:
        words, bits = integers(self.qzeros), self.stored_bits
        if self.zeros_less_one and bits in _ONES:
            words = words.astype(np.uint32) + _ONES[bits]
        found = along_rows(words, bits, range(self.groups), rows).T.astype(np.int32)
        if self.zeros_less_one and bits not in _ONES:
            found = (found + 1) & ((1 << bits) - 1)
        return found


def _read_gptq(module: Module, scheme: WeightScheme) -> GPTQMatrix | None:
    qweight = module.matrix("qweight", ("I32",))
    inputs, outputs = qweight.shape[0] * 32 // scheme.bits, qweight.shape[1]
    group = scheme.group_size or inputs
    groups = -(-inputs // group)
    qzeros, scales = module.take("qzeros", ("I32",)), module.take("scales", FLOATS)
    if qzeros.shape != (groups, words_of(outputs, scheme.bits)):
        return None
    if scales.shape != (groups, outputs) or qweight.shape[0] != words_of(inputs, scheme.bits):
        return None
    return GPTQMatrix(
        module.name,
        outputs,
        inputs,
        scheme.levels,
        bits=scheme.held_bits,
        group=group,
        order=group_order(module, "g_idx", inputs, group, required=scheme.act_order),
        qweight=qweight,
        qzeros=qzeros,
        stored_scales=scales,
        zeros_less_one=scheme.zeros_less_one,
        stored_bits=scheme.bits,
    )


def group_order(
    module: Module, part: str, inputs: int, group: int, *, required: bool
) -> np.ndarray | None:
    """Returns the group of each input, [inputs] int64; None if groups consist of neighbours. Raises
    UnsupportedModel for groups that don't exist."""
    if part not in module.parts and not required:
        return None
    order = integers(module.take(part, ("I32", "I64"), (inputs,))).astype(np.int64)
    if (order == -1).all():  # Registered, but never filled.
        return None
    groups = -(-inputs // group)
    if order.min() < 0 or order.max() >= groups:
        raise module.wrong(
            f"has groups {order.min()} to {order.max()} in {part}; 0 to {groups - 1} exist"
        )
    return None if np.array_equal(order, np.arange(inputs) // group) else order


GPTQ = CheckpointFormat("gptq", lambda module: "qweight" in module.parts, _read_gptq)


# AWQ in the layout for GEMM kernels (AutoAWQ's WQLinear_GEMM).
#
# `qweight` int32 [inputs, outputs / 8], `qzeros` int32 [groups, outputs / 8], `scales` [groups,
# outputs]. A word has the 4-bit levels of eight neighbouring outputs; its nibbles, from the lowest,
# are in the order of AWQ_ORDER.

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
