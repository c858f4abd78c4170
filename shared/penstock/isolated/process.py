"""A front end's handle on such a process."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

from penstock.frames import HEADER

_PROGRAM = (
    "import importlib, sys; n = int(sys.argv[4]); sys.path[:0] = sys.argv[5:5 + n]; "
    "from penstock.isolated.child import run; run(importlib.import_module(sys.argv[3]).main)"
)
_PACKAGES = ("penstock", "msgspec", "setproctitle")
_OVERTIME = {-signal.SIGPROF, -signal.SIGXCPU}
_CRASHES = {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE}


class Died(Exception):
    """The process is gone, for a reason that isn't the task's."""


class Stalled(Exception):
    """The task took more time than it may."""


class Crashed(Exception):
    """The task brought the process down."""


class IsolatedProcess:
    """Runs `main(parent, bounds)` of a module in a bare interpreter, with an end of a socket as its
    standard input. One exchange at a time; after an exception it must be closed."""

    def __init__(
        self,
        module: str,
        packages: Sequence[str],
        bounds: bytes,
        *,
        stderr: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """packages: that the module imports, beside penstock's own.  bounds: handed on.
        stderr, environment: as Popen has them. Raises OSError."""
        ours, theirs = socket.socketpair()
        paths = _import_paths([*_PACKAGES, *packages])
        command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(os.getpid()), bounds.decode()]
        command += [module, str(len(paths)), *paths]
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=environment,
            )
        self._socket = ours

    @property
    def pid(self) -> int:
        pid: int = self._process.pid
        return pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """Ends the process. Idempotent."""
        if self._end():
            self._process.wait()

    async def end(self) -> None:
        """The same, without keeping the event loop: much memory isn't given back at once."""
        if self._end():
            await asyncio.shield(asyncio.to_thread(self._process.wait))

    def abandon(self) -> None:
        """Lets go of it without ending it: in a fork, it is the other's."""
        self._socket.close()
        self._process.returncode = 0

    async def _send(self, payload: bytes) -> None:
        """A frame. Raises OSError."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._socket, HEADER.pack(len(payload)))
        await loop.sock_sendall(self._socket, payload)

    async def _receive(self, size: int) -> bytearray:
        """So many bytes. Raises OSError, and EOFError where the process has left."""
        loop = asyncio.get_running_loop()
        buffer = bytearray(size)
        view, at = memoryview(buffer), 0
        while at < size:
            got = await loop.sock_recv_into(self._socket, view[at:])
            if not got:
                raise EOFError
            at += got
        return buffer

    def _reason(self) -> Exception:
        """Why there is no answer."""
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return Died("it closed its socket")
        if code in _OVERTIME:
            return Stalled()
        return Crashed() if code in _CRASHES else Died(f"exit code {code}")

    def _end(self) -> bool:
        """Whether it is to be waited for."""
        self._socket.close()
        if self._process.returncode is not None:
            return False
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        return True


def _import_paths(packages: Sequence[str]) -> list[str]:
    """Where this process has the child's few packages from: it skips `site`, to start fast."""
    specs = [importlib.util.find_spec(name) for name in packages]
    return list(dict.fromkeys(_folder(spec) for spec in specs if spec and spec.origin))


def _folder(spec: ModuleSpec) -> str:
    """That a module or a package lies in."""
    own = Path(spec.origin or "").parent
    return str(own if spec.submodule_search_locations is None else own.parent)
