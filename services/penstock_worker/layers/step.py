"""What every layer of one forward pass shares."""

from __future__ import annotations

from dataclasses import dataclass

from penstock_worker.attention.interface import Rotation, StepAttention


@dataclass(frozen=True)
class Step:
    """What every layer of a step reads."""

    rotation: Rotation
    """Of each row."""
    attention: StepAttention
    """Of this step's batch."""
