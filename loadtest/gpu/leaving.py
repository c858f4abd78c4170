"""How a process that has started others leaves when it is told to. Standard library only."""

from __future__ import annotations

import signal
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
