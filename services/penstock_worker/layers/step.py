"""What every layer of one forward pass shares."""

from __future__ import annotations

from dataclasses import dataclass

from penstock_worker.attention.interface import Rotation, StepAttention


@dataclass(frozen=True)
class Step:
    """rotation: of each row.  attention: of this step's batch."""

    rotation: Rotation
    attention: StepAttention
