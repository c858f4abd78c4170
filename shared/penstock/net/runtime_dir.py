"""The private folder of a running system: its ipc sockets and its resolved configuration."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import weakref
from pathlib import Path

from penstock.errors import StartupError

PREFIX = "penstock-"
MAX_IPC_PATH = 107
"""Longest path of a Unix socket in bytes (sockaddr_un holds 108 with the final zero)."""

_LONGEST_NAME = "frontend.sock"
_LOCK = "lock"


class RuntimeDir:
    """A fresh 0700 folder under XDG_RUNTIME_DIR or the temporary folder; `remove` deletes it.

    The folder is locked while its owner lives.  The folder of an owner that was killed is found by
    its free lock and deleted by the next `create`.  A forked child doesn't hold the lock, so a
    child that outlives the owner doesn't keep the folder.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock
        _made.add(self)

    @classmethod
    def create(cls, base: Path | None = None, *, sockets: bool = True) -> RuntimeDir:
        """Raises StartupError when no folder can be made; if it is to have sockets, when their
        paths would be too long."""
        base = _base() if base is None else base
        remove_abandoned(base)
        try:
            path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        except OSError as error:
            raise _unusable(base, error) from None
        longest = len(os.fsencode(path / _LONGEST_NAME))
        if sockets and longest > MAX_IPC_PATH:
            path.rmdir()
            raise StartupError(
                f"the runtime folder {base} has too long a path: sockets in it would need "
                f"{longest} bytes of {MAX_IPC_PATH}; set XDG_RUNTIME_DIR or TMPDIR to a shorter one"
            )
        # Locked before it gets its name, so that it is never seen unlocked.
        unnamed = path / "lock.new"
        try:
            lock = os.open(unnamed, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            path.rmdir()
            raise _unusable(base, error) from None
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unnamed.rename(path / _LOCK)
        return cls(path, lock)

    @classmethod
    def part_of(cls, whole: RuntimeDir, path: Path) -> RuntimeDir:
        """A folder in `whole`, which goes with it."""
        if path.parent != whole.path:
            raise ValueError(f"{path} is not in {whole.path}")
        return cls(path, -1)

    def endpoint(self, name: str) -> str:
        """The ZeroMQ endpoint of a socket in this folder."""
        return f"ipc://{self.path / name}.sock"

    def write(self, name: str, data: bytes) -> Path:
        """Writes a file in it. Raises StartupError if there is no room."""
        path = self.path / name
        try:
            path.write_bytes(data)
        except OSError as error:
            raise _unusable(self.path, error) from None
        return path

    def folder(self, name: str) -> Path:
        """Returns a folder in it, made if it isn't there. Raises StartupError if there is no
        room."""
        path = self.path / name
        try:
            path.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise _unusable(self.path, error) from None
        return path

    def _forget(self) -> None:
        """Here is a child of the owner."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def remove(self) -> None:
        """Deletes the folder with all that is in it. Idempotent, and of no effect in a child."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


_made: weakref.WeakSet[RuntimeDir] = weakref.WeakSet()


def _after_fork() -> None:
    for runtime in list(_made):
        runtime._forget()


os.register_at_fork(after_in_child=_after_fork)


def remove_abandoned(base: Path) -> None:
    """Deletes runtime folders of this user whose owner is dead."""
    for path in base.glob(PREFIX + "*"):
        try:
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                continue
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass  # its owner lives
        finally:
            os.close(lock)


def _unusable(folder: Path, error: OSError) -> StartupError:
    return StartupError(
        f"the runtime folder {folder} can't be written: {error.strerror}; XDG_RUNTIME_DIR or TMPDIR"
        " names another place"
    )


def _base() -> Path:
    """XDG_RUNTIME_DIR where it is a folder that we can write to, else the temporary folder."""
    named = os.environ.get("XDG_RUNTIME_DIR")
    if named and os.path.isdir(named) and os.access(named, os.W_OK | os.X_OK):
        return Path(named)
    return Path(tempfile.gettempdir())
