"""How far a model has come that computes its layers one after the other, and whether it goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock_worker.forward.interface import StepCancelled


class LayerByLayer:
    """A kind has `_count_layer` called after each layer; several threads may be in it.

    check: that of the model's Ranks.
    """

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        self.layers_done = 0
        self._check = check
        self._lock = threading.Lock()
        self._cancelled = False

    def cancel(self) -> None:
        """The worker leaves: a step that is being computed ends with the layer that it is at."""
        self._cancelled = True

    def _go_on(self) -> None:
        """Raises StepCancelled where the worker leaves."""
        if self._cancelled:
            raise StepCancelled

    def _count_layer(self) -> None:
        """Raises StepCancelled, and what `check` does."""
        self._go_on()
        self._check()
        self._count_layers(1)

    def _count_layers(self, count: int) -> None:
        """Of layers that are queued together: nothing is asked."""
        with self._lock:
            self.layers_done += count
