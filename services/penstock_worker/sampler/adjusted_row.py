"""A row of logits after its biases and penalties, on the host."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from penstock_kernels import reference as ops
from penstock_worker.sampler.adjustments import SequenceAdjustments


def adjust_row(logits: Tensor, adjustments: SequenceAdjustments) -> Tensor:
    """Returns a copy of the row. logits: [vocab] float32."""
    penalties = adjustments.penalties
    if penalties is None:
        return ops.adjust_row(logits, ops.RowAdjustments(adjustments.bias))
    counts = dict(zip(penalties.ids.tolist(), penalties.counts.tolist(), strict=True))
    wanted = ops.RowAdjustments(
        adjustments.bias, counts, penalties.presence, penalties.frequency, penalties.repetition
    )
    return ops.adjust_row(logits, wanted)


def adjusted_values(row: np.ndarray, adjustments: SequenceAdjustments) -> np.ndarray:
    """Returns the same in numpy: the row itself where nothing changes it. row: [vocab] float32."""
    if adjustments.penalties is None and not adjustments.bias:
        return row
    return adjust_row(torch.from_numpy(row), adjustments).numpy()
