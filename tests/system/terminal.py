"""A command in a pseudo-terminal: what a person types, and what they see."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from types import TracebackType

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x1b(?:\[[0-9;?]*)?\Z|[\x01\x02]")
"""The third is one whose end has not come yet."""


class Screen:
    """What a program wrote to its terminal. seen: all of it.

    A read ends anywhere, on a busy machine also inside a character or an escape sequence: that is
    left out until the rest is here, so the plain text only grows.
    """

    def __init__(self) -> None:
        self.seen = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, raw: bytes) -> None:
        """The next bytes, however few."""
        self.seen += self._decoder.decode(raw)

    @property
    def plain(self) -> str:
        """Without escape sequences and carriage returns."""
        return ESCAPES.sub("", self.seen).replace("\r", "")


class Terminal:
    """`penstock` with these arguments, as the foreground process of a terminal of its own.

    seen: all that it wrote so far.  env: added to this process's environment.
    """

    def __init__(
        self, *arguments: str, columns: int = 80, rows: int = 24, env: dict[str, str] | None = None
    ) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", **(env or {})}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            if name not in (env or {}):
                environment.pop(name, None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(theirs)
        self._fd = ours
        self._screen = Screen()

    @property
    def seen(self) -> str:
        return self._screen.seen

    @property
    def plain(self) -> str:
        """What was written, without escape sequences and carriage returns."""
        return self._screen.plain

    def type(self, text: str) -> None:
        """Keys. Ctrl-C is \\x03, Ctrl-D is \\x04."""
        os.write(self._fd, text.encode())

    def wait_for(self, pattern: str, timeout: float = 120.0, start: int = 0) -> re.Match[str]:
        """Until the plain text from `start` on has the pattern. Raises AssertionError."""
        deadline = time.monotonic() + timeout
        while True:
            found = re.search(pattern, self.plain[start:])
            if found:
                return found
            if time.monotonic() >= deadline:
                raise TimeoutError(f"no {pattern!r} in\n{self.plain[start:]}")
            if not self._read(0.2) and self.process.poll() is not None:
                raise AssertionError(f"it left; no {pattern!r} in\n{self.plain[start:]}")

    def wait_exit(self, timeout: float = 120.0) -> int:
        """Its exit code; reads on meanwhile, or it could not write."""
        deadline = time.monotonic() + timeout
        while self.process.poll() is None:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"it runs on after\n{self.plain}")
            self._read(0.1)
        while self._read(0.1):
            pass
        return self.process.returncode

    def _read(self, seconds: float) -> bool:
        if not select.select([self._fd], [], [], seconds)[0]:
            return False
        try:
            raw = os.read(self._fd, 65_536)
        except OSError:  # the other side is closed
            return False
        self._screen.add(raw)
        return bool(raw)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._fd)


def _take_terminal() -> None:
    """In the child: what a login shell does. Tests may run where Ctrl-C is ignored."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
