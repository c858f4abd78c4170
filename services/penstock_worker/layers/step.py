"""What every layer of one forward pass shares."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from penstock_worker.attention.interface import StepAttention


@dataclass(frozen=True)
class Step:
    """cos, sin: [rows, head_dim / 2], of each row's position.  attention: of this step's batch."""

    cos: Tensor
    sin: Tensor
    attention: StepAttention
