"""Keeps FP8 weights of checkpoints as they are, for products with activations in FP8."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from penstock_worker.quantisation.checkpoints.fp8 import FP8Matrix
from penstock_worker.quantisation.fp8 import FP8, FP8Rows
from penstock_worker.weights.checkpoint_tensor import CheckpointTensor, chunks
from penstock_worker.weights.placing import CPU
from penstock_worker.weights.stored import Place, StoredTensor


def keeps_fp8(tensor: StoredTensor, device: torch.device) -> bool:
    """Returns whether the tensor is of FP8 weights with a scale per output, meant for activations
    in FP8, and the device has such products. (Triton's interpreter has.)"""
    matrix = tensor.quantised if isinstance(tensor, CheckpointTensor) else None
    if not isinstance(matrix, FP8Matrix) or tensor.rearrange:
        return False
    if not matrix.float8_inputs or not matrix.by_row:
        return False
    return device == CPU or torch.cuda.get_device_capability(device) >= FP8.capability


def kept_fp8(
    parts: Sequence[tuple[CheckpointTensor, tuple[range, ...]]],
    device: torch.device,
    place: Place,
) -> FP8Rows:
    """Stacks parts [rows, columns] of several matrices for which keeps_fp8 returns True. All have
    the same columns."""
    outputs, inputs = sum(len(rows) for _, (rows, _) in parts), len(parts[0][1][1])
    levels = torch.empty(outputs, inputs, dtype=torch.uint8, device=device)
    scales = torch.empty(outputs, dtype=torch.float32, device=device)
    start = 0
    for tensor, (rows, columns) in parts:
        matrix = tensor.quantised
        if not isinstance(matrix, FP8Matrix):
            raise TypeError(f"{tensor.name} isn't FP8")
        for some in chunks(rows, len(columns)):
            end = start + len(some)
            # Copied: these are the mapped file itself.
            place(levels[start:end], torch.from_numpy(matrix.levels(some, columns).copy()))
            place(scales[start:end], torch.from_numpy(matrix.row_scales(some).copy()))
            start = end
    return FP8Rows(levels.view(torch.float8_e4m3fn), scales)
