"""Lower priority for threads that work concurrently with steps: they give way to those that compute
them."""

from __future__ import annotations

import os
import threading

from penstock.process import logs

log = logs.get(__name__)

NICENESS = 10


def step_back() -> None:
    """Makes the calling thread give way to those that compute steps."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    except OSError as error:
        log.warning("a thread's priority can't be lowered", reason=str(error))
