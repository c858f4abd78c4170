"""An event loop that measures how long it keeps everybody waiting.

A turn is all that runs between two looks at the sockets: whatever stands in one delays every
stream.  Counted is the processor time of the loop's own thread, so other programs on the machine,
other threads and other processes don't change it.
"""

from __future__ import annotations

import asyncio
import collections
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

REPOSITORY = Path(__file__).parents[2]
OURS = tuple(f"{REPOSITORY}/{folder}/" for folder in ("services", "shared"))
"""Folders whose code is named where a turn is long."""
LOOK_EVERY = 0.02
"""Seconds between two looks at what a turn does that goes on."""
DEEPEST = 6
"""Frames of a stack that are named, the innermost first."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn of the loop."""

    seconds: float
    """Processor time of the loop's thread."""
    held: float
    """Seconds that the loop's thread waited while others of this process computed, at most: of a
    thread that keeps the interpreter's lock, all of it."""
    handles: int
    """What was ready."""
    slowest: str
    """What took longest of it, and how much of the time."""
    stack: tuple[str, ...]
    """Where the thread was found most often; empty for a short turn."""


class Meter:
    """Keeps the longest turn since it was last asked."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._thread)
        self._cpu = 0.0
        self._worst = NOTHING
        self._longest_held = 0.0
        self._turns = 0
        self._seconds = 0.0
        self.handles = 0
        self._running: Any = None
        self._slowest: Any = None
        self._slowest_seconds = 0.0
        self._since = 0.0
        self.begun = 0.0
        """Monotonic time of the first handle of a turn that goes on; 0 between turns."""
        self.found: collections.Counter[tuple[str, ...]] = collections.Counter()

    def begins(self) -> None:
        """A turn begins; the thread waits first."""
        self.handles = 0
        self._running = self._slowest = None
        self._slowest_seconds = 0.0
        self._cpu = self._since = time.thread_time()

    def runs(self, handle: Any) -> None:
        """A handle is about to run."""
        now = time.thread_time()
        if self.handles:
            self._note(now)
        else:
            self.found.clear()
            self._wall, self._all = time.monotonic(), time.process_time()
            self._own = now
            self.begun = self._wall
        self.handles += 1
        self._running, self._since = handle, now

    def ends(self) -> None:
        now = time.thread_time()
        seconds = now - self._cpu
        self._turns += 1
        self._seconds += seconds
        if self.handles:
            self._note(now)
            self.begun, wall = 0.0, time.monotonic() - self._wall
            own = now - self._own
            self._longest_held = max(
                self._longest_held, min(wall, time.process_time() - self._all) - own
            )
        if seconds > self._worst.seconds:
            self._worst = self._turn(seconds, self._slowest, self._slowest_seconds)

    def take(self) -> tuple[Turn, int, float]:
        """The longest turn since the last call, be it one that goes on, how many have ended, and
        their seconds. May be called by another thread."""
        worst, turns, seconds = self._worst, self._turns, self._seconds
        self._worst, self._turns, self._seconds = NOTHING, 0, 0.0
        held, self._longest_held = self._longest_held, 0.0
        if self.begun:  # A turn that goes on counts as it is.
            spent = time.clock_gettime(self._clock) - self._cpu
            if spent > worst.seconds:
                worst = self._turn(spent, self._running, spent)
        return msgspec.structs.replace(worst, held=held), turns, seconds

    def look(self) -> None:
        """Notes where the loop's thread is, if it has been in one turn for long. Called by another
        thread."""
        begun = self.begun
        if begun and time.monotonic() - begun > LOOK_EVERY:
            frame = sys._current_frames().get(self._thread)
            if frame is not None:
                self.found[_stack(frame)] += 1

    def _turn(self, seconds: float, slowest: Any, its_seconds: float) -> Turn:
        stacks = self.found.most_common(1)
        return Turn(
            seconds=seconds,
            held=self._longest_held,
            handles=self.handles,
            slowest=f"{_described(slowest)} {its_seconds:.3f} s",
            stack=stacks[0][0] if stacks else (),
        )

    def _note(self, now: float) -> None:
        if now - self._since > self._slowest_seconds:
            self._slowest, self._slowest_seconds = self._running, now - self._since


NOTHING = Turn(seconds=0.0, held=0.0, handles=0, slowest="", stack=())


class _Ready(collections.deque[Any]):
    """What the loop is about to run; each handle begins where the loop takes it."""

    meter: Meter

    def popleft(self) -> Any:
        handle = super().popleft()
        self.meter.runs(handle)
        return handle


class MeteredLoop(asyncio.SelectorEventLoop):
    """The library's own loop, and its meter. Made in the thread that runs it."""

    def __init__(self) -> None:
        super().__init__()
        self.meter = Meter()
        self._ready = _Ready()
        self._ready.meter = self.meter

    def _run_once(self) -> None:
        self.meter.begins()
        super()._run_once()  # type: ignore[misc]
        self.meter.ends()


def watch(meter: Meter) -> None:
    """Starts a thread that looks at what long turns do, as long as the process lives."""

    def run() -> None:
        while True:
            time.sleep(LOOK_EVERY)
            meter.look()

    threading.Thread(target=run, name="looks at turns", daemon=True).start()


def _described(handle: Any) -> str:
    """What a handle calls: of a task its coroutine."""
    callback = getattr(handle, "_callback", None)
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        coroutine = owner.get_coro()
        return f"task {getattr(coroutine, '__qualname__', coroutine)}"
    return str(getattr(callback, "__qualname__", callback))


def _stack(frame: FrameType | None) -> tuple[str, ...]:
    found: list[str] = []
    while frame is not None and len(found) < DEEPEST:
        name = frame.f_code.co_filename
        if name.startswith(OURS):
            short = name.removeprefix(f"{REPOSITORY}/")
            found.append(f"{short}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return tuple(found)
