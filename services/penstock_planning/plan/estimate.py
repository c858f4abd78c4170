"""A step's cost on a device that isn't here: a roofline, from its data sheet and the model."""

from __future__ import annotations

import msgspec

from penstock.errors import InvalidRequest
from penstock_planning.simulate.cost import StepCost

GB = 1e9
BANDWIDTH_SHARE, ARITHMETIC_SHARE, MEMORY_SHARE = 0.8, 0.5, 0.9
"""What kernels reach of a data sheet's bandwidth and of its arithmetic; and the memory that weights
and KV may take."""
LEAST_FIGURE, MOST_FIGURE = 0.001, 1e9
"""Bounds of each figure of a device."""


class Accelerator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """bandwidth: GB/s of its memory.  tflops: dense, of bfloat16.  memory: GB.  overhead: ms of a
    step that is neither: launches, planning."""

    bandwidth: float
    tflops: float
    memory: float
    overhead: float = 2.0


DEVICES = {
    "a100": Accelerator(bandwidth=2039, tflops=312, memory=80),
    "h100": Accelerator(bandwidth=3350, tflops=989, memory=80),
    "h200": Accelerator(bandwidth=4800, tflops=989, memory=141),
    "l4": Accelerator(bandwidth=300, tflops=121, memory=24),
    "l40s": Accelerator(bandwidth=864, tflops=362, memory=48),
}
"""Accelerators, by their makers' data sheets: the SXM versions, without sparsity."""


class ModelSize(msgspec.Struct, frozen=True, kw_only=True):
    """parameters: that a token is multiplied by.  weight_bytes: read in each step.  kv_bytes: of a
    token.  pair_operations: of a token and one that it attends to, in all layers."""

    name: str
    parameters: float
    weight_bytes: float
    kv_bytes: float
    pair_operations: float


def parse_device(text: str) -> tuple[str, Accelerator]:
    """`h100`, or `bandwidth=3350,tflops=989,memory=80,overhead=2`. Raises InvalidRequest."""
    if text in DEVICES:
        return text, DEVICES[text]
    pairs = [pair.partition("=") for pair in text.split(",")]
    try:
        fields = {name.strip(): float(value) for name, _, value in pairs}
        device = msgspec.convert(fields, Accelerator)
        values = msgspec.structs.astuple(device)
        if not all(LEAST_FIGURE <= value <= MOST_FIGURE for value in values):
            raise ValueError
    except (ValueError, msgspec.ValidationError):
        raise InvalidRequest(
            f"--device {text[:80]!r}: it takes {', '.join(DEVICES)}, or figures in "
            f"{LEAST_FIGURE:g} to {MOST_FIGURE:,.0f} as in "
            "bandwidth=3350,tflops=989,memory=80 (GB/s, dense TFLOPS, GB; also overhead, ms)",
            param="device",
        ) from None
    return text, device


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
