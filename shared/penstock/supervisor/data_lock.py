"""The lock on `--data-dir`: one running system, and no other, writes there.

Separate `penstock gateway` and `penstock batches` processes don't take it, since they are parts of
one system and share the folder on purpose.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import time
from pathlib import Path

from penstock.errors import StartupError
from penstock.process import logs

log = logs.get(__name__)

NAME = "lock"
"""The file in the folder. It stays there: what counts is the lock on it."""
PATIENCE = 3.0
"""Seconds that the processes of a supervisor that was killed get to end."""
LOOK = 0.05
"""Seconds between two attempts meanwhile."""
LONGEST_NOTE = 300
"""Bytes that are read of the file: a pid and the name of a machine."""


class DataLock:
    """Held from `take` until `release`, and then until the last child that inherited its file
    descriptor has ended. So a supervisor that is killed gives it up, but not before its gateways
    and batches have stopped writing."""

    def __init__(self, fd: int | None = None) -> None:
        self._fd = fd

    @property
    def inherited(self) -> tuple[int, ...]:
        """The file descriptor that processes which write to the folder are to inherit."""
        return () if self._fd is None else (self._fd,)

    @classmethod
    async def take(cls, data_dir: str | None) -> DataLock:
        """Makes the folder if it isn't there. Raises StartupError where another system has it.
        Where the folder can't be locked for another reason, the log says so and nothing is locked;
        if it can't be written at all, the gateways say that."""
        if data_dir is None:
            return cls()
        folder = Path(data_dir).expanduser().absolute()
        fd = None
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(folder / NAME, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            await _lock(fd, folder)
        except OSError as error:
            if fd is not None:
                os.close(fd)
            log.warning(
                "the data folder can't be locked: no other server must use it",
                folder=str(folder),
                reason=error.strerror,
            )
            return cls()
        except BaseException:
            if fd is not None:
                os.close(fd)
            raise
        return cls(fd)

    def release(self) -> None:
        """Gives up this process's own hold. Idempotent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


async def _lock(fd: int, folder: Path) -> None:
    """Raises StartupError where another system has the lock, and OSError where there are none."""
    deadline = time.monotonic() + PATIENCE
    while not _locked(fd):
        if time.monotonic() > deadline:
            raise StartupError(
                f"--data-dir: {folder} is in use by another server{_holder(fd)}; allowed is one "
                "server for each folder: stop the other one, or give this one a folder of its own"
            )
        await asyncio.sleep(LOOK)
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
    except OSError:
        pass  # The disk is full. An error then doesn't name the folder's holder.


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(fd: int) -> str:
    """The holder of the lock by its own words, to follow "another server"; empty if it couldn't
    write them."""
    note = os.pread(fd, LONGEST_NOTE, 0).decode("utf-8", "replace").split()
    if len(note) != 2 or not note[0].isdecimal():
        return ""
    pid, host = note
    ended = host == socket.gethostname() and not Path(f"/proc/{pid}").exists()
    left = ", which has ended, but not all of its processes" if ended else ""
    return f" (pid {pid} on {host}{left})"
