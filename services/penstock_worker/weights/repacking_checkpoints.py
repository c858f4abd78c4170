"""Lays levels of quantised checkpoints out for the Triton kernels, without rounding them again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from penstock_kernels.triton.linear.gguf_weights import GROUP, Layout, empty
from penstock_worker.quantisation.checkpoints.matrix import LevelMatrix
from penstock_worker.quantisation.gguf.matrix import GGUFMatrix
from penstock_worker.weights.checkpoint_tensor import CheckpointTensor, chunks
from penstock_worker.weights.placing import CPU
from penstock_worker.weights.stored import Place, StoredTensor

LevelPart = tuple[CheckpointTensor, tuple[range, ...]]
"""A matrix, and the rows and columns of it that are kept."""


def kept_as(tensor: StoredTensor, columns: range) -> str | None:
    """Returns the name of the layout that keeps these columns of a tensor as they are: `int4`,
    `int8`, or with `wide` after it, which has float32 scales and minima. None if none does."""
    matrix = tensor.quantised if isinstance(tensor, CheckpointTensor) else None
    if not isinstance(matrix, LevelMatrix) or matrix.order is not None or tensor.rearrange:
        return None
    if columns.start % GROUP or columns.stop % GROUP:
        return None
    if matrix.group % GROUP and matrix.group < matrix.inputs:
        return None
    rows = range(matrix.outputs)
    scales = matrix.finite_scales(rows)
    with np.errstate(over="ignore"):
        half = (scales.astype(np.float16).astype(np.float32) == scales).all()
    narrow = half and (matrix.zeros(rows) == matrix.centre).all()
    return f"int{matrix.bits}" if narrow else f"int{matrix.bits} wide"


def repacked_levels(
    parts: Sequence[LevelPart], kept: str, device: torch.device, place: Place
) -> GGUFMatrix:
    """Stacks parts of several matrices as one on `device`. `kept` is what kept_as returns for each
    of them; all have the same columns."""
    columns = parts[0][1][1]
    layout = _layout(kept, len(columns))
    outputs = sum(len(rows) for _, (rows, _) in parts)
    out = GGUFMatrix(**vars(empty(layout, outputs, len(columns), device)))
    if out.units is not None and out.unit_minima is not None:
        out.units.fill_(1)
        out.unit_minima.fill_(1)
    start = 0
    for tensor, (rows, held) in parts:
        matrix = tensor.quantised
        if not isinstance(matrix, LevelMatrix):
            raise TypeError(f"{tensor.name} has no levels")
        for some in chunks(rows, len(held)):
            for name, values in _groups(matrix, some, held, layout).items():
                _write(out.tensors[name], values, start, place)
            start += len(some)
    return out


def _layout(kept: str, inputs: int) -> Layout:
    """The wide layout has no units: one for all inputs is 1, as scales are no whole numbers."""
    bits = 4 if kept.startswith("int4") else 8
    if kept.endswith("wide"):
        return Layout(bits, minima=True, factors=torch.float32, unit=inputs)
    return Layout(bits, offset=8 if bits == 4 else 0)


def _groups(matrix: LevelMatrix, rows: range, columns: range, layout: Layout) -> dict[str, Tensor]:
    """Returns tensors of GGUFWeights by name, each [rows, groups of 32 inputs, …]."""
    count = len(columns) // GROUP
    group = (columns.start + np.arange(count) * GROUP) // matrix.group
    # Copied: what isn't unpacked is the mapped file itself.
    levels = torch.from_numpy(np.array(matrix.levels(rows, columns)))
    levels = levels.reshape(len(rows), count, GROUP)
    zeros = matrix.zeros(rows)[:, group]
    if layout.bits == 4:
        # A matrix with 4 bits has its first 16 inputs in the low nibbles.
        levels = levels[..., :16] | levels[..., 16:] << 4
    else:
        levels = (levels ^ 128).view(torch.int8)
        zeros = zeros - 128
    scales = np.ascontiguousarray(matrix.finite_scales(rows)[:, group])
    found = {"levels": levels, "scales": torch.from_numpy(scales)}
    if layout.minima:
        found["minima"] = torch.from_numpy(-(zeros * scales).astype(np.float32))
    return found


def _write(target: Tensor, values: Tensor, start: int, place: Place) -> None:
    values = values.to(target.dtype).contiguous()
    staged = values
    if target.device != CPU:
        staged = torch.empty(values.shape, dtype=values.dtype, device=target.device)
        place(staged, values)
    target[:, start : start + len(values)].copy_(staged.transpose(0, 1))
