"""Quantised tensors as the CUDA kernels want them: the file's own numbers, in another order.

Source of the blocks: as in `formats`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from penstock_kernels.triton.linear.gguf_weights import GROUP, GGUFWeights, Layout, empty
from penstock_worker.quantisation.gguf.blocks import (
    FORMATS,
    k_nibbles,
    k_scales,
    q5_k_levels,
    q6_k_levels,
)
from penstock_worker.weights.placing import CPU
from penstock_worker.weights.stored import CHUNK_ELEMENTS, Place, StoredTensor

Split = Callable[[Tensor], dict[str, Tensor]]
"""uint8 [blocks, bytes] -> GGUFWeights' tensors by name, each [blocks, groups or units, …]."""

LAYOUTS = {
    "Q4_0": Layout(4, offset=8),
    "Q4_1": Layout(4, minima=True),
    "Q5_0": Layout(5, offset=16),
    "Q5_1": Layout(5, minima=True),
    "Q8_0": Layout(8),
    "Q4_K": Layout(4, minima=True, factors=torch.uint8),
    "Q5_K": Layout(5, minima=True, factors=torch.uint8),
    "Q6_K": Layout(6, offset=32, group=16, factors=torch.int8),
}
"""By the name of the type. All quantised types of FORMATS."""


def repacked(
    tensors: Sequence[tuple[StoredTensor, tuple[range, ...]]], device: torch.device, place: Place
) -> GGUFWeights:
    """Parts [rows, columns] of tensors of one type, one below the other, on `device`.

    columns: the same of all; `fits` says which can be.
    """
    stored, (_, columns) = tensors[0]
    whole = LAYOUTS[stored.format]
    layout = whole
    if whole.factors is not None and not _aligned(columns, whole.unit):
        layout = replace(whole, unit=GROUP)
    out = empty(layout, sum(len(part[0]) for _, part in tensors), len(columns), device)
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
    tensor: StoredTensor, rows: range, columns: range, out: GGUFWeights, start: int, place: Place
) -> None:
    """Some rows at a time; on the device their groups go to where other rows' are."""
    split = _SPLITS[tensor.format]
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


def _half(blocks: Tensor, start: int) -> Tensor:
    """The float16 at byte `start`. [blocks, 1]."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16)


def _packed(levels: Tensor) -> Tensor:
    """[blocks, groups, 32] whole numbers -> their lower 4 bits as bytes [blocks, groups, 16]."""
    return (levels[..., :16] & 15) | (levels[..., 16:] & 15) << 4


def _planes(levels: Tensor, bits: int) -> Tensor:
    """The bits from the fifth on, [blocks, groups, bits - 4] int32."""
    weights = 1 << torch.arange(32, dtype=torch.int64)
    planes = [
        ((levels.long() >> bit & 1) * weights).sum(-1) for bit in range(4, bits)
    ]  # Up to 2**32 - 1: the upper half becomes negative in int32.
    return torch.stack(planes, -1).to(torch.int32)


def _q4_0(blocks: Tensor) -> dict[str, Tensor]:
    return {"levels": blocks[:, None, 2:], "scales": _half(blocks, 0)}


def _q4_1(blocks: Tensor) -> dict[str, Tensor]:
    return {
        "levels": blocks[:, None, 4:],
        "scales": _half(blocks, 0),
        "minima": _half(blocks, 2),
    }


def _q5_0(blocks: Tensor) -> dict[str, Tensor]:
    high = blocks[:, 2:6].contiguous().view(torch.int32)[:, :, None]
    return {"levels": blocks[:, None, 6:], "high": high, "scales": _half(blocks, 0)}


def _q5_1(blocks: Tensor) -> dict[str, Tensor]:
    high = blocks[:, 4:8].contiguous().view(torch.int32)[:, :, None]
    return {
        "levels": blocks[:, None, 8:],
        "high": high,
        "scales": _half(blocks, 0),
        "minima": _half(blocks, 2),
    }


def _q8_0(blocks: Tensor) -> dict[str, Tensor]:
    return {"levels": blocks[:, None, 2:].view(torch.int8), "scales": _half(blocks, 0)}


def _k_parts(blocks: Tensor) -> dict[str, Tensor]:
    """Scales and minima of Q4_K and Q5_K. What is subtracted there is added here."""
    scales, minima = k_scales(blocks[:, 4:16])
    return {
        "scales": scales,
        "minima": minima,
        "units": _half(blocks, 0),
        "unit_minima": -_half(blocks, 2),
    }


def _q4_k(blocks: Tensor) -> dict[str, Tensor]:
    return _k_parts(blocks) | {"levels": _packed(k_nibbles(blocks[:, 16:]))}


def _q5_k(blocks: Tensor) -> dict[str, Tensor]:
    levels = q5_k_levels(blocks)
    return _k_parts(blocks) | {"levels": _packed(levels), "high": _planes(levels, 5)}


def _q6_k(blocks: Tensor) -> dict[str, Tensor]:
    levels = q6_k_levels(blocks)
    return {
        "levels": _packed(levels),
        "high": _planes(levels, 6),
        "scales": blocks[:, 192:208].view(torch.int8),
        "units": _half(blocks, 208),
    }


_SPLITS: dict[str, Split] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
