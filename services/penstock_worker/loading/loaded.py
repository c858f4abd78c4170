"""What loading a model gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.protocol.from_worker import Ready
from penstock.protocol.to_worker import Setup
from penstock_worker.loading.kernels import NO_KERNELS, LoadedKernels
from penstock_worker.steps.runner import StepRunner


@dataclass(frozen=True)
class Loaded:
    """A loaded model."""

    setup: Setup  # What it was loaded for.
    runner: StepRunner[Any]
    ready: Ready  # What is reported to the engine core.
    kv_bytes: int  # Size of the KV cache.
    kernels: LoadedKernels = NO_KERNELS
    give_back: Callable[[], None] | None = None
    """Gives back the memory of the KV cache and its host tier, where that leaves the rest as it is;
    None: it doesn't, as on a device, whose captured steps hold addresses."""
