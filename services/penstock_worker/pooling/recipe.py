"""How a pooling model will be computed, and what comes of loading it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.model_config import PreparedModel
from penstock.protocol.to_worker import Setup
from penstock_worker.batch.slots import SlotBounds, Slots
from penstock_worker.metrics.phases import Phases
from penstock_worker.steps.runner import StepRunner

BLOCKS_EACH = 3
"""An encoder's blocks are only the engine's count of sequences: one for each that runs, and what it
keeps free beside them."""


@dataclass(frozen=True)
class PoolingParts:
    """A pooling model that is loaded."""

    runner: StepRunner[Any]
    blocks: int  # Of the KV pool.
    host_blocks: int = 0  # Of the host tier.
    kv_bytes: int = 0  # Memory of the pool.
    copy_seconds: float = 0.0  # What a block takes to the host and back.


@dataclass(frozen=True)
class PoolingRecipe:
    """A pooling model before its weights are read."""

    backend: str  # For people, as the next two.
    dtype: str
    device_name: str
    fingerprint: str  # All that the numbers depend on beside the model.
    load: Callable[[Phases], PoolingParts]
    """Reads the weights. The runner's parts are timed by the Phases."""


def pooling_slots(prepared: PreparedModel, setup: Setup, blocks: int) -> Slots:
    return Slots(SlotBounds.of(setup, prepared.config.vocab_size, blocks))
