"""The hosts of simulated devices: threads of which one runs at a time, until it has to wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.worker.cuda.simulated.device import Device, Misuse
from tests.worker.cuda.simulated.tensors import Dispatch

LONGEST = 60.0
"""Seconds that a host waits for a device while others wait for each other by themselves."""

GRACE = 3.0
"""Seconds that those who no host frees have, to be freed by another thread."""


class Hosts:
    """Hosts that wait for devices: where all wait, and no device can go on, none ever will: a
    Misuse."""

    def __init__(self, devices: list[Device]) -> None:
        self.devices = devices
        self._turn = threading.Condition(threading.RLock())
        self._here = threading.local()
        self._going = self._elsewhere = self._changes = 0
        self._stalled: dict[int, int] = {}
        """How much had been queued when these threads saw that they have to wait."""
        for device in devices:
            device.share(self, self._turn)

    def device(self) -> Device:
        """The device of the host that asks, or of the one that has started the thread that asks."""
        return self._here.device

    def asking(self) -> Device | None:
        """The `device` of who asks; None for a thread that has none."""
        return getattr(self._here, "device", None)

    def beside(self, device: Device, call: Callable[[], Any]) -> None:
        """What a thread does that one of the device's hosts has started, and that steps don't wait
        for. It takes a turn whenever it reaches for the device."""
        self._here.device, self._here.aside = device, True
        device.here.aside = True
        with Dispatch(device):
            call()

    def expect(self, count: int) -> None:
        """So many calls of `run` come, from threads of their own."""
        with self._turn:
            self._going += count

    def run(self, device: Device, call: Callable[[], Any]) -> Any:
        """What the device's host does."""
        with self._turn:
            self._here.device = device
            try:
                with Dispatch(device):
                    return call()
            finally:
                del self._here.device
                self._going -= 1
                self._turn.notify_all()

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """The host waits for others without its device."""
        if not hasattr(self._here, "device"):
            yield
            return
        self._elsewhere += 1
        self._turn.release()
        try:
            yield
        finally:
            self._turn.acquire()
            self._elsewhere -= 1

    def changed(self) -> None:
        """Something was queued, or needs not be waited for any more."""
        with self._turn:
            self._changes += 1
            self._turn.notify_all()

    def until(self, done: Callable[[], bool]) -> None:
        """A host waits for devices, or a thread beside it."""
        if getattr(self._here, "aside", False):
            with self._turn:
                if not self._turn.wait_for(done, LONGEST):
                    raise Misuse("a thread waits for what no rank has queued")
            return
        me = threading.get_ident()
        while not done():
            self._stalled[me] = self._changes
            try:
                self._stall(self._changes)
            finally:
                del self._stalled[me]

    def _stall(self, seen: int) -> None:
        def may_end() -> bool:
            return self._changes != seen or self._nobody_goes_on()

        self._turn.wait_for(may_end, LONGEST)
        # A group that is over is cut loose by threads of its own, which may be on their way.
        if not self._turn.wait_for(lambda: self._changes != seen, GRACE):
            raise Misuse("a device waits for what no rank has queued, and none will")

    def _nobody_goes_on(self) -> bool:
        stuck = all(seen == self._changes for seen in self._stalled.values())
        return stuck and not self._elsewhere and len(self._stalled) >= self._going
