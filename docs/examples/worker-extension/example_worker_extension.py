"""A worker extension: what a rank knows of itself, as plain values and arrays."""

from __future__ import annotations

import resource
import time

import numpy as np

from penstock_worker.extensions import WorkerContext


class Measures:
    """`llm.collective_rpc("memory")`, `llm.collective_rpc("scaled", args=(array, 2.0))`."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context

    def memory(self) -> dict[str, object]:
        """The rank, what it computes on, and the most that its process has held, in KiB."""
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {"rank": self._context.rank, "device": self._context.device, "most_kib": most}

    def scaled(self, array: np.ndarray, by: float = 1.0) -> np.ndarray:
        """Arrays go there and come back."""
        return array * by

    def pause(self, seconds: float) -> float:
        """Takes its time: longer than the call's `timeout`, and the worker is replaced."""
        time.sleep(seconds)
        return seconds
