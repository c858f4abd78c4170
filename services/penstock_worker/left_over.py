"""A step that is still being computed when its result isn't needed any more."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from penstock.process import logs

log = logs.get(__name__)

HUNG_SECONDS = 60.0
"""Seconds without a computed layer that a step may go on for after its session has ended, before
this process ends, to be started anew."""


@dataclass
class Activity:
    """What the main thread does. It writes `session` and `step` (None: no step); both threads may
    call layers_done, which counts up while a step goes on."""

    session: int = 0
    step: int | None = None
    layers_done: Callable[[], int] = lambda: 0


class LeftOverStep:
    """The step that the main thread was in when its session ended, until that step ends. Sessions
    may come and go meanwhile: the main thread takes none of them before. For the session's thread;
    times by time.monotonic."""

    def __init__(self, activity: Activity) -> None:
        self._activity = activity
        self._session: int | None = None
        """The session of the step; None: there is none."""
        self._layers = 0
        self._since = 0.0
        """Time at which the latest layer was computed, as far as was seen."""

    def session_ended(self, now: float) -> None:
        """Whatever step there is, is left over."""
        activity = self._activity
        if activity.step is not None and activity.session != self._session:
            self._session = activity.session
            self._layers, self._since = activity.layers_done(), now

    def stands_for(self, now: float) -> float:
        """Seconds since it was left over, or since its last layer; 0 if there is none."""
        activity = self._activity
        if self._session is None:
            return 0.0
        if activity.step is None or activity.session != self._session:
            self._session = None
            return 0.0
        layers = activity.layers_done()
        if layers != self._layers:
            self._layers, self._since = layers, now
        return now - self._since


def end_hung(step: int | None) -> NoReturn:
    """Ends this process, and says where its threads are. An orderly end would wait for the step."""
    log.error("a step hangs after its session ended; the process exits", step=step)
    faulthandler.dump_traceback()
    os._exit(1)
