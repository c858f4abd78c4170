"""The process's own side."""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Callable

from penstock.process.children import die_with_parent
from penstock.process.title import set_title

SOCKET = 0
"""File descriptor of the socket for frames in both directions."""


def begin(parent: int, title: str) -> None:
    """parent: the front end's pid, with which the process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that started us.
    die_with_parent(parent)
    set_title(title)


def confine(memory: int) -> None:
    """Limits the address space to so many bytes from now on, and has no core of it written."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run(main: Callable[[int, bytes], None]) -> None:
    """Entry: in a process started by `penstock.process.isolated`."""
    try:
        main(int(sys.argv[1]), sys.argv[2].encode())
    except (BrokenPipeError, ConnectionResetError):
        pass  # The front end is gone.
