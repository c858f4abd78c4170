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
    """blocks, host_blocks: of the KV pool and the host tier.  kv_bytes: memory of the pool.
    copy_seconds: what a block takes to the host and back."""

    runner: StepRunner[Any]
    blocks: int
    host_blocks: int = 0
    kv_bytes: int = 0
    copy_seconds: float = 0.0


@dataclass(frozen=True)
class PoolingRecipe:
    """backend, dtype, device_name: for people.  fingerprint: all that the numbers depend on beside
    the model.  load: reads the weights; its runner's parts are timed by the Phases."""

    backend: str
    dtype: str
    device_name: str
    fingerprint: str
    load: Callable[[Phases], PoolingParts]


def pooling_slots(prepared: PreparedModel, setup: Setup, blocks: int) -> Slots:
    return Slots(SlotBounds.of(setup, prepared.config.vocab_size, blocks))
