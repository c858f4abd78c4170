"""What all layers of one forward pass share."""

from __future__ import annotations

from dataclasses import dataclass

from penstock_worker.attention.interface import Rotation, StepAttention


@dataclass(frozen=True)
class Step:
    """The inputs of a step that every layer reads."""

    rotations: tuple[Rotation, ...]
    """For each row, by each of the model's rotary embeddings."""
    attention: StepAttention
    """For this step's batch."""
