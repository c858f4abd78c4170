"""How a process starts others, ends them, and leaves when it is told to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

from loadtest.report import ROOT

UNENDING = 10.0
"""Seconds after which a killed process is left to the driver that holds it."""
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


def start_group(module: str, options: list[str], log: Any) -> subprocess.Popen[bytes]:
    """`python -m module`, as the leader of a group. log: an open file for what it says."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *options],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def end_group(process: subprocess.Popen[bytes], grace: float = 0.0) -> None:
    """Ends a process that leads a group, and all of the group: SIGTERM, and SIGKILL to what is left
    after `grace` seconds; SIGKILL at once without a grace."""
    try:
        if grace and process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(grace)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    # What a broken driver holds can't be killed: whoever waited for it would never report.
    with suppress(subprocess.TimeoutExpired):
        process.wait(UNENDING)
