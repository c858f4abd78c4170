"""How a process that has started others leaves when it is told to, and how it ends them. Standard
library only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""SIGHUP: the terminal was closed."""


def leave_at_signals() -> None:
    """Makes SystemExit of them, once: what ends the started processes then isn't cut short by a
    second one.  One that is ignored, as nohup has SIGHUP, stays so."""
    for each in SIGNALS:
        if signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, _leave)


def _leave(signum: int, _: Any) -> None:
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + signum)


def end_group(process: subprocess.Popen[bytes], grace: float = 0.0) -> None:
    """Ends a process that leads a group, and all of the group: SIGTERM, and SIGKILL to what is left
    after `grace` seconds; SIGKILL at once without a grace."""
    if grace and process.poll() is None:
        signal_group(process, signal.SIGTERM)
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            pass
    signal_group(process, signal.SIGKILL)
    process.wait()


def signal_group(process: subprocess.Popen[bytes], signum: int) -> None:
    try:
        os.killpg(process.pid, signum)
    except ProcessLookupError:
        pass
