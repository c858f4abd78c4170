"""Repacks a file's quantised blocks as GGUFWeights: the same numbers in another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from penstock_kernels.triton.linear.gguf_weights import GROUP, Layout, empty
from penstock_worker.quantisation.gguf.matrix import GGUFMatrix
from penstock_worker.quantisation.registry import FORMATS
from penstock_worker.weights.stored import CHUNK_ELEMENTS, Place, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

_KEPT = {name: form.kept for name, form in FORMATS.items() if form.kept is not None}

LAYOUTS: dict[str, Layout] = {name: kept.layout for name, kept in _KEPT.items()}
"""Layouts of the formats that can stay quantised, by type name."""


def repacked(
    tensors: Sequence[tuple[StoredTensor, tuple[range, ...]]], device: torch.device, place: Place
) -> GGUFMatrix:
    """Stacks parts [rows, columns] of several tensors of one type as one matrix on `device`.

    All parts must have the same columns, for which `fits` returns True.
    """
    stored, (_, columns) = tensors[0]
    layout = _layout(stored.format, columns)
    outputs = sum(len(part[0]) for _, part in tensors)
    out = GGUFMatrix(**vars(empty(layout, outputs, len(columns), device)))
    start = 0
    for tensor, part in tensors:
        rows, held = part
        _read(tensor, rows, held, out, start, place)
        start += len(rows)
    return out


def bytes_on_card(tensor: StoredTensor) -> int:
    """Returns what a whole tensor takes on a card: a matrix whose type stays quantised as
    `repacked` has it, others as the file does."""
    if tensor.format not in LAYOUTS or len(tensor.shape) != 2:
        return int(tensor.content.nbytes)
    layout = _layout(tensor.format, range(tensor.shape[1]))
    return empty(layout, *tensor.shape, torch.device("meta")).nbytes


def _layout(form: str, columns: range) -> Layout:
    whole = LAYOUTS[form]
    if whole.units and not _aligned(columns, whole.unit):
        return replace(whole, unit=GROUP)
    return whole


def fits(stored: StoredTensor, columns: range) -> bool:
    """Returns whether these columns of the tensor can stay quantised."""
    return stored.format in LAYOUTS and _aligned(columns, GROUP)


def _aligned(columns: range, unit: int) -> bool:
    return columns.start % unit == 0 and columns.stop % unit == 0


def _read(
    tensor: StoredTensor, rows: range, columns: range, out: GGUFMatrix, start: int, place: Place
) -> None:
    """Reads a chunk of rows at a time, transfers it, and writes its groups to their places in
    `out`."""
    split = _KEPT[tensor.format].split
    width = FORMATS[tensor.format].elements
    first, last = columns.start // width, -(-columns.stop // width)
    skipped = columns.start - first * width
    sources = tensor.sources()[rows.start : rows.stop]
    step = max(1, CHUNK_ELEMENTS // ((last - first) * width))
    for at in range(0, len(sources), step):
        blocks = tensor.blocks_of(sources[at : at + step], range(first, last))
        found = split(blocks.flatten(0, 1))
        for values in found.values():
            tensor.check_finite(values)
        for name, target in out.tensors.items():
            per = len(columns) // target.shape[0]
            values = _by_row(found[name], blocks.shape[0], width, per)
            values = values[:, skipped // per : skipped // per + target.shape[0]].contiguous()
            staged = values
            if target.device.type != "cpu":
                staged = torch.empty(values.shape, dtype=values.dtype, device=target.device)
                place(staged, values)
            begin = start + at
            target[:, begin : begin + len(values)].copy_(staged.transpose(0, 1))


def _by_row(values: Tensor, rows: int, width: int, per: int) -> Tensor:
    """Maps [blocks, groups, …] to [rows, columns / per, …]. A value that applies to several groups
    of `per` columns is repeated for each."""
    repeated = width // per // values.shape[1]
    if repeated > 1:
        values = values.repeat_interleave(repeated, 1)
    return values.reshape(rows, -1, *values.shape[2:])
