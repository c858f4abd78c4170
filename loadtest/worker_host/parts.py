"""Times the worker's parts from outside, each without those inside of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PARTS = (
    "plan decode",
    "slots",
    "gather",
    "layout",
    "upload",
    "replay",
    "sampler",
    "begin, rest",
    "collect",
    "settle",
    "result, rest",
    "encode",
)


class Clock:
    """seconds: by part, since the last `take`."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._inside: list[float] = []

    def call(self, part: str, function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        begun = time.thread_time()
        self._inside.append(0.0)
        try:
            return function(*arguments, **more)
        finally:
            spent = time.thread_time() - begun
            self.seconds[part] += spent - self._inside.pop()
            if self._inside:
                self._inside[-1] += spent

    def take(self) -> dict[str, float]:
        taken, self.seconds = self.seconds, dict.fromkeys(PARTS, 0.0)
        return taken

    def watch(self, owner: Any, name: str, part: str) -> None:
        """What `owner` calls `name` is of this part; without effect where there is no such."""
        inner = getattr(owner, name, None)
        if inner is None:
            return

        def timed(*arguments: Any, **more: Any) -> Any:
            return self.call(part, inner, *arguments, **more)

        setattr(owner, name, timed)
