"""Accelerators, and what of their figures kernels reach."""

from __future__ import annotations

import msgspec

from penstock.errors import InvalidRequest

GB = 1e9
BANDWIDTH_SHARE, ARITHMETIC_SHARE, MEMORY_SHARE = 0.8, 0.5, 0.9
"""What kernels reach of a data sheet's bandwidth and of its arithmetic; and the memory that weights
and KV may take."""
LEAST_FIGURE, MOST_FIGURE = 0.001, 1e9
"""Bounds of each figure of a device."""


class Accelerator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """bandwidth: GB/s of its memory.  tflops: dense, of bfloat16.  memory: GB.  overhead: ms of a
    step that is neither: launches, planning.  link: GB/s to the host's memory, one way, by the
    standard of its bus."""

    bandwidth: float
    tflops: float
    memory: float
    overhead: float = 2.0
    link: float = 32.0


DEVICES = {
    "3060": Accelerator(bandwidth=360, tflops=25, memory=12),
    "4090": Accelerator(bandwidth=1008, tflops=165, memory=24),
    "5080": Accelerator(bandwidth=960, tflops=113, memory=16, link=64),
    "a100": Accelerator(bandwidth=2039, tflops=312, memory=80),
    "h100": Accelerator(bandwidth=3350, tflops=989, memory=80, link=64),
    "h200": Accelerator(bandwidth=4800, tflops=989, memory=141, link=64),
    "l4": Accelerator(bandwidth=300, tflops=121, memory=24),
    "l40s": Accelerator(bandwidth=864, tflops=362, memory=48),
}
"""Accelerators, by their makers' data sheets: the SXM versions, the
GeForce 3060 with 12 GB, without sparsity and with float32 sums."""


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
            "bandwidth=3350,tflops=989,memory=80 (GB/s, dense TFLOPS, GB; also overhead, ms; "
            "link, GB/s)",
            param="device",
        ) from None
    return text, device
