"""One pipe to the program that started us: tells it how it went, and learns of its end."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable

import msgspec

from penstock.errors import InvalidRequest


class StartupReport:
    """The writing end of a pipe that the starter reads one JSON line from.

    Its end is noticed however it comes, since the kernel then closes the reading end; unlike a
    parent's death signal this doesn't depend on which of its threads started us.
    """

    def __init__(self, fd: int) -> None:
        try:
            mode = os.fstat(fd).st_mode
        except OSError:
            raise InvalidRequest(f"--report-fd {fd}: no such file descriptor") from None
        if not stat.S_ISFIFO(mode) and not stat.S_ISSOCK(mode):
            raise InvalidRequest(f"--report-fd {fd} must be a pipe or a socket")
        os.set_inheritable(fd, False)
        self._fd = fd
        self._sent = False

    def send_ready(self, **facts: object) -> None:
        self._send({"ready": True, **facts})

    def send_error(self, message: str) -> None:
        self._send({"error": message})

    def _send(self, value: dict[str, object]) -> None:
        if self._sent:
            return
        self._sent = True
        try:
            os.write(self._fd, msgspec.json.encode(value) + b"\n")
        except OSError:
            pass  # the reader is gone: `watch` reports it

    def watch(self, on_reader_gone: Callable[[], None]) -> None:
        """Calls back, once, when the reading end is closed."""
        loop = asyncio.get_running_loop()

        def gone() -> None:
            loop.remove_reader(self._fd)
            on_reader_gone()

        # epoll reports the error condition of a pipe without a reader whatever it is asked for.
        loop.add_reader(self._fd, gone)
