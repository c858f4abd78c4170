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
from penstock_worker.quantisation.checkpoints.packed_words import across_rows, along_rows, words_of

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
