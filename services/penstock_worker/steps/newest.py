"""The newest token of each slot on the device, where the next step finds it before the host
does."""

from __future__ import annotations

from torch import Tensor

from penstock_worker.device.queue import DeviceQueue


class NewestTokens:
    """Writes sampled tokens to `DeviceForward.newest`, through the device's queue."""

    def __init__(self, newest: Tensor, queue: DeviceQueue) -> None:
        self._newest = newest
        self._queue = queue
        self._sent: tuple[list[int], Tensor | None] = ([], None)

    def write(self, slots: list[int], tokens: Tensor) -> None:
        """Queues the update. `tokens` is [slots] int64 on the device, and may not have been
        computed yet."""
        self._newest.index_copy_(0, self._numbers(slots), tokens)

    def _numbers(self, slots: list[int]) -> Tensor:
        """Returns the slot numbers as a tensor on the device. The last one is kept, because the
        slots are mostly those of the step before."""
        known, sent = self._sent
        if sent is None or known != slots:
            sent = self._queue.numbers(slots)
            self._sent = (list(slots), sent)
        return sent
