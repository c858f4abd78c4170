"""Where the time of steps goes, seen from outside: the parts that a runner is made of are timed,
and the runner knows nothing of it, unless a device computes while it goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast, get_args

Phase = Literal["forward", "sample", "masks", "copies", "encode"]
Part = TypeVar("Part")


class Phases:
    """seconds: by phase. Of parts that several threads call at once, each thread's count.

    watching: whether anybody reads them.  For a device that works through a queue, its runner adds
    the device's own seconds: the duration of its calls says nothing.
    """

    watching = True

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(get_args(Phase), 0.0)
        self._lock = threading.Lock()

    def watch(self, part: Part, method: str, phase: Phase) -> Part:
        """The part, whose `method` is timed."""
        return cast(Part, _Timed(part, method, self._timed(getattr(part, method), phase)))

    def time(self, part: Part, method: str, phase: Phase) -> Part:
        """Times a method of this very object, which stays of its class. Returns it."""
        setattr(part, method, self._timed(getattr(part, method), phase))
        return part

    def _timed(self, call: Callable[..., Any], phase: Phase) -> Callable[..., Any]:
        def timed(*arguments: Any, **keywords: Any) -> Any:
            begun = time.perf_counter()
            try:
                return call(*arguments, **keywords)
            finally:
                self.add(phase, time.perf_counter() - begun)

        return timed

    def add(self, phase: Phase, seconds: float) -> None:
        """Adds seconds to a phase. May be called from any thread."""
        with self._lock:
            self.seconds[phase] += seconds


class Unwatched(Phases):
    """Phases of steps that aren't measured: the parts stay as they are."""

    watching = False

    def watch(self, part: Part, method: str, phase: Phase) -> Part:
        return part

    def time(self, part: Part, method: str, phase: Phase) -> Part:
        return part


UNWATCHED = Unwatched()


class _Timed:
    """What stands in place of a part; whatever is not its one method is the part's own."""

    def __init__(self, part: object, method: str, timed: Callable[..., Any]) -> None:
        self._part = part
        setattr(self, method, timed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)
