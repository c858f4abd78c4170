"""How long a gateway's event loop stands still, told apart from how busy the machine is.

A task on the loop sleeps again and again. What counts of its delay is no more than the processor
time that this process used meanwhile: a loop that waits for a processor uses none, and one whose
turn is long, or that waits for the interpreter's lock, waits for exactly that.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

EVERY = 0.002
"""Seconds between two beats."""
LATEST = 0.05
"""Seconds that a beat may be late, on a processor that decodes PIECE in USUAL."""
_PIECE = b"[" + b'{"role":"user","content":"\\u0041 a short text"},' * 4000 + b"1]"
_USUAL = 0.0012


class Heartbeat:
    """Beats on the running loop from `begin` to `end`."""

    def __init__(self) -> None:
        self.late = 0.0
        """Seconds, the most since it was last set."""
        self._beats = 0
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        self._task = asyncio.create_task(self._beat())

    async def end(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def settle(self) -> None:
        """Returns after the next two beats: whatever came before has been noticed."""
        until = self._beats + 2
        while self._beats < until:
            await asyncio.sleep(EVERY)

    async def _beat(self) -> None:
        while True:
            wall, busy = time.perf_counter(), time.process_time()
            await asyncio.sleep(EVERY)
            delay = time.perf_counter() - wall - EVERY
            self.late = max(self.late, min(delay, time.process_time() - busy))
            self._beats += 1


def latest() -> float:
    """LATEST for this processor, at its present speed; never less than LATEST."""
    took = min(_timed() for _ in range(3))
    return LATEST * max(1.0, took / _USUAL)


def _timed() -> float:
    begun = time.thread_time()
    msgspec.json.decode(_PIECE)
    return time.thread_time() - begun


@contextmanager
def collecting_as_a_gateway() -> Iterator[None]:
    """The garbage collector looks at what is made from now on, as in a gateway's process, and not
    at everything that a test's process has imported."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
