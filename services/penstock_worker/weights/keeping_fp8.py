"""Keeps FP8 weights of checkpoints as they are: for products with activations in FP8, and for those
of experts, which leave activations as they are."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from penstock_worker.quantisation.checkpoints.fp8 import FP8Matrix
from penstock_worker.quantisation.fp8 import FP8, FP8_GROUP, FP8Blocks, FP8Rows
from penstock_worker.weights.checkpoint_tensor import CheckpointTensor, chunks
from penstock_worker.weights.placing import CPU
from penstock_worker.weights.stored import Place, StoredTensor

BY_ROW, BY_BLOCK = "fp8 by row", "fp8 by block"
"""Names of FP8 formats with a scale per output, or per 128 inputs of an output."""

_Parts = Sequence[tuple[CheckpointTensor, tuple[range, ...]]]


def fp8_kind(
    tensor: StoredTensor, columns: range, device: torch.device, *, wide_inputs: bool = False
) -> str | None:
    """Returns how these columns of FP8 weights are kept, if the device has their products (Triton's
    interpreter has), and they are meant for activations in FP8; None: they aren't kept.

    `wide_inputs`: what they are meant for doesn't matter, as activations stay unquantised.
    """
    matrix = tensor.quantised if isinstance(tensor, CheckpointTensor) else None
    if not isinstance(matrix, FP8Matrix) or tensor.rearrange:
        return None
    if not (wide_inputs or matrix.float8_inputs):
        return None
    if device != CPU and torch.cuda.get_device_capability(device) < FP8.capability:
        return None
    if matrix.by_row:
        return BY_ROW
    ends = columns.stop == matrix.inputs or columns.stop % FP8_GROUP == 0
    whole = matrix.block[1] == FP8_GROUP and columns.start % FP8_GROUP == 0 and ends
    return BY_BLOCK if whole else None


def kept_fp8(parts: _Parts, kind: str, device: torch.device, place: Place) -> FP8Rows | FP8Blocks:
    """Stacks parts [rows, columns] of several matrices for which fp8_kind returns `kind`. All have
    the same columns."""
    outputs, inputs = sum(len(rows) for _, (rows, _) in parts), len(parts[0][1][1])
    groups = 1 if kind == BY_ROW else -(-inputs // FP8_GROUP)
    levels = torch.empty(outputs, inputs, dtype=torch.uint8, device=device)
    scales = torch.empty(outputs, groups, dtype=torch.float32, device=device)
    start = 0
    for tensor, (rows, columns) in parts:
        matrix = tensor.quantised
        if not isinstance(matrix, FP8Matrix):
            raise TypeError(f"{tensor.name} isn't FP8")
        for some in chunks(rows, len(columns)):
            end = start + len(some)
            # Copied: these are the mapped file itself.
            place(levels[start:end], torch.from_numpy(matrix.levels(some, columns).copy()))
            if kind == BY_ROW:
                own = matrix.row_scales(some)[:, None]
            else:
                own = matrix.group_scales(some, columns)
            place(scales[start:end], torch.from_numpy(own.copy()))
            start = end
    numbers = levels.view(torch.float8_e4m3fn)
    return FP8Rows(numbers, scales[:, 0]) if kind == BY_ROW else FP8Blocks(numbers, scales)
