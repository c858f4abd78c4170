"""Progress and cancellation of a model that computes its layers one after another."""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock_worker.forward.interface import StepCancelled


class LayerByLayer:
    """Base class of such a Forward. The subclass has `_count_layer` called after each layer;
    several threads may run layers at once."""

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        """`check` is called after each layer; it is that of the model's Ranks, and may raise
        GroupLost."""
        self.layers_done = 0
        self._check = check
        self._lock = threading.Lock()
        self._cancelled = False

    def cancel(self) -> None:
        """Called when the worker stops: a step that is being computed ends after its current
        layer."""
        self._cancelled = True

    def _go_on(self) -> None:
        """Raises StepCancelled if the worker is stopping."""
        if self._cancelled:
            raise StepCancelled

    def _count_layer(self) -> None:
        """Counts a layer. Raises StepCancelled, and what `check` raises."""
        self._go_on()
        self._check()
        self._count_layers(1)

    def _count_layers(self, count: int) -> None:
        """Counts layers that were queued together, without any check."""
        with self._lock:
            self.layers_done += count
