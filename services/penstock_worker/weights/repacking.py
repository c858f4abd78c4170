"""From a file's blocks to GGUFWeights: the same numbers in another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from penstock_kernels.triton.linear.gguf_weights import GROUP, Layout, empty
from penstock_worker.quantisation.gguf.matrix import GGUFMatrix
from penstock_worker.quantisation.registry import FORMATS
from penstock_worker.weights.placing import CPU
from penstock_worker.weights.stored import CHUNK_ELEMENTS, Place, StoredTensor

_KEPT = {name: form.kept for name, form in FORMATS.items() if form.kept is not None}

LAYOUTS: dict[str, Layout] = {name: kept.layout for name, kept in _KEPT.items()}
"""Of the formats that can stay as they are, by the name of the type."""


def repacked(
    tensors: Sequence[tuple[StoredTensor, tuple[range, ...]]], device: torch.device, place: Place
) -> GGUFMatrix:
    """Parts [rows, columns] of tensors of one type, one below the other, on `device`.

    columns: the same of all; `fits` says which can be.
    """
    stored, (_, columns) = tensors[0]
    whole = LAYOUTS[stored.format]
    layout = whole
    if whole.factors is not None and not _aligned(columns, whole.unit):
        layout = replace(whole, unit=GROUP)
    outputs = sum(len(part[0]) for _, part in tensors)
    out = GGUFMatrix(**vars(empty(layout, outputs, len(columns), device)))
    start = 0
    for tensor, part in tensors:
        rows, held = part
        _read(tensor, rows, held, out, start, place)
        start += len(rows)
    return out


def fits(stored: StoredTensor, columns: range) -> bool:
    """Whether those columns of the tensor can be kept as they are."""
    return stored.format in LAYOUTS and _aligned(columns, GROUP)


def _aligned(columns: range, unit: int) -> bool:
    return columns.start % unit == 0 and columns.stop % unit == 0


def _read(
    tensor: StoredTensor, rows: range, columns: range, out: GGUFMatrix, start: int, place: Place
) -> None:
    """Some rows at a time; on the device their groups go to where other rows' are."""
    split = _KEPT[tensor.format].split
    width = FORMATS[tensor.format].elements
    first, last = columns.start // width, -(-columns.stop // width)
    skipped = columns.start - first * width
    sources = tensor.sources()[rows.start : rows.stop]
    step = max(1, CHUNK_ELEMENTS // ((last - first) * width))
    for at in range(0, len(sources), step):
        blocks = tensor.blocks_of(sources[at : at + step], range(first, last))
        found = split(blocks.flatten(0, 1))
        for name, target in out.tensors.items():
            per = len(columns) // target.shape[0]
            values = _by_row(found[name], blocks.shape[0], width, per)
            values = values[:, skipped // per : skipped // per + target.shape[0]].contiguous()
            staged = values
            if target.device != CPU:
                staged = torch.empty(values.shape, dtype=values.dtype, device=target.device)
                place(staged, values)
            begin = start + at
            target[:, begin : begin + len(values)].copy_(staged.transpose(0, 1))


def _by_row(values: Tensor, rows: int, width: int, per: int) -> Tensor:
    """[blocks, groups, …] -> [rows, columns / per, …]: what is said once for several groups of
    `per` columns is repeated."""
    repeated = width // per // values.shape[1]
    if repeated > 1:
        values = values.repeat_interleave(repeated, 1)
    return values.reshape(rows, -1, *values.shape[2:])
