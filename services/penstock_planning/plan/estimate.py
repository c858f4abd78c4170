"""A step's cost on a device that isn't here: a roofline, from its data sheet and the model."""

from __future__ import annotations

import msgspec

from penstock.errors import InvalidRequest
from penstock.recommend.cards import (
    ARITHMETIC_SHARE,
    BANDWIDTH_SHARE,
    GB,
    MEMORY_SHARE,
    Accelerator,
)
from penstock_planning.simulate.cost import StepCost


class ModelSize(msgspec.Struct, frozen=True, kw_only=True):
    """parameters: that a token is multiplied by.  weight_bytes: read in each step.  kv_bytes: of a
    token.  pair_operations: of a token and one that it attends to, in all layers."""

    name: str
    parameters: float
    weight_bytes: float
    kv_bytes: float
    pair_operations: float


def estimated_cost(device: Accelerator, model: ModelSize) -> StepCost:
    """A step takes as long as reading the weights or multiplying by them, whichever is longer, and
    reading the KV on top."""
    bandwidth = BANDWIDTH_SHARE * device.bandwidth * GB
    operations = ARITHMETIC_SHARE * device.tflops * 1e12
    return StepCost(
        base_ms=1000 * model.weight_bytes / bandwidth,
        hidden_ms=1000 * 2 * model.parameters / operations,
        read_ms=1000 * model.kv_bytes / bandwidth,
        context_ms=1000 * model.pair_operations / operations,
        overhead_ms=device.overhead,
        token_ms=0.0,
        sequence_ms=0.0,
    )


def kv_blocks(device: Accelerator, model: ModelSize, block_size: int) -> int:
    """Returns how many blocks fit in addition to the weights. Raises InvalidRequest where these
    don't fit."""
    room = MEMORY_SHARE * device.memory * GB - model.weight_bytes
    blocks = int(room / (model.kv_bytes * block_size)) if model.kv_bytes else 1_000_000
    if blocks < 1:
        raise InvalidRequest(
            f"{model.name}: weights of {model.weight_bytes / GB:,.1f} GB leave no room for KV in "
            f"{device.memory:,.0f} GB",
            param="device",
        )
    return min(blocks, 10_000_000)
