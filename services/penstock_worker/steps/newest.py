"""The newest token of each slot, where the device finds it before the host has seen it."""

from __future__ import annotations

from torch import Tensor

from penstock_worker.device.queue import DeviceQueue


class NewestTokens:
    """Writes what was sampled to a DeviceForward's `newest`, by its queue."""

    def __init__(self, newest: Tensor, queue: DeviceQueue) -> None:
        self._newest = newest
        self._queue = queue
        self._sent: tuple[list[int], Tensor | None] = ([], None)

    def write(self, slots: list[int], tokens: Tensor) -> None:
        """tokens: [slots] int64 of the device, which may still be on their way."""
        self._newest.index_copy_(0, self._numbers(slots), tokens)

    def _numbers(self, slots: list[int]) -> Tensor:
        """The slots on the device; they are those of the step before as a rule."""
        known, sent = self._sent
        if sent is None or known != slots:
            sent = self._queue.numbers(slots)
            self._sent = (list(slots), sent)
        return sent
