"""How a pooling model will be computed, and what results from loading it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.model.kv_layout import ONE_GROUP, KVGroup
from penstock.protocol.to_worker import Setup
from penstock_worker.media.encoder import MediaEncodings
from penstock_worker.metrics.phases import Phases
from penstock_worker.steps.runner import StepRunner

BLOCKS_EACH = 3
"""Blocks per sequence that are reported for an encoder. It has no KV cache, so that blocks only let
the engine core count sequences: one for each that runs, and those that it keeps free."""


@dataclass(frozen=True)
class PoolingParts:
    """A loaded pooling model."""

    runner: StepRunner[Any]
    blocks: int  # Number of KV blocks.
    host_blocks: int = 0  # Number of blocks of the host tier.
    kv_bytes: int = 0  # Size of the KV cache.
    copy_seconds: float = 0.0  # Time of copying a block to the host and back.
    kv_groups: tuple[KVGroup, ...] = ONE_GROUP  # Each has a block table for every sequence.
    media: MediaEncodings | None = None  # Of a model that takes some.


@dataclass(frozen=True)
class PoolingRecipe:
    """A pooling model before its weights are read."""

    backend: str  # For logs, as are the next two.
    dtype: str
    device_name: str
    fingerprint: str  # Everything but the model that the numbers depend on.
    load: Callable[[Phases], PoolingParts]
    """Reads the weights. The phases measure the parts of a step."""


def pooling_fingerprint(setup: Setup) -> str:
    """What vectors depend on of the pooling. Dense layers are part of the model's digest."""
    if setup.pooling is None:
        return ""
    return str(msgspec.structs.replace(setup.pooling.without_files(), template=None))
