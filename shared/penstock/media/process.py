"""A front end's handle on one process that prepares media."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import msgspec

from penstock.frames import HEADER
from penstock.media.wire import MAX_FRAME, Answer, Prepare, ProcessBounds

LARGE = 1 << 20
"""Bytes of an item from which on a thread receives it."""
START_TIME = 30.0
"""Seconds that a process may take to start."""
PATIENCE = 4
"""Times its processor time that an item may take by the clock: a busy machine is no bomb."""

_PROGRAM = (
    "import sys; n = int(sys.argv[3]); sys.path[:0] = sys.argv[4:4 + n]; "
    "from penstock.media.child import run; run()"
)
_PACKAGES = (
    *("penstock", "numpy", "PIL", "msgspec", "setproctitle"),
    *("soundfile", "_cffi_backend", "cffi", "pycparser", "soxr"),
)
_OVERTIME = {-signal.SIGPROF, -signal.SIGXCPU}
_CRASHES = {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE}
_ANSWER = msgspec.msgpack.Decoder(Answer)


class MediaProcessDied(Exception):
    """The process is gone, for a reason that isn't the item's."""


class MediaStalled(Exception):
    """The item took more time than it may."""


class MediaCrashed(Exception):
    """The item brought the process down."""


class MediaProcess:
    """One exchange at a time, in one event loop; after an exception it must be closed."""

    def __init__(self, bounds: ProcessBounds) -> None:
        self._bounds = bounds
        self._answered = False
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        paths = _import_paths()
        command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(os.getpid())]
        command += [msgspec.json.encode(bounds).decode(), str(len(paths)), *paths]
        with theirs:
            # What it writes on stderr are words of a decoder about a stranger's bytes.
            self._process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment(),
            )
        self._socket = ours

    @property
    def pid(self) -> int:
        pid: int = self._process.pid
        return pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    async def ask(self, task: Prepare) -> Answer:
        """Prepares an item. Raises MediaStalled, MediaCrashed or MediaProcessDied."""
        payload = msgspec.msgpack.encode(task)
        loop = asyncio.get_running_loop()
        wall = PATIENCE * self._bounds.cpu + (0.0 if self._answered else START_TIME)
        try:
            async with asyncio.timeout(wall):
                await loop.sock_sendall(self._socket, HEADER.pack(len(payload)))
                await loop.sock_sendall(self._socket, payload)
                answer = await self._answer(loop)
        except TimeoutError:
            raise MediaStalled from None
        except msgspec.DecodeError:
            raise MediaCrashed from None
        except (OSError, EOFError):
            raise await asyncio.to_thread(self._reason) from None
        self._answered = True
        return answer

    def close(self) -> None:
        """Ends the process. Idempotent."""
        if self._end():
            self._process.wait()

    async def end(self) -> None:
        """The same, without keeping the event loop: much memory isn't given back at once."""
        if self._end():
            await asyncio.shield(asyncio.to_thread(self._process.wait))

    def _end(self) -> bool:
        """Whether it is to be waited for."""
        self._socket.close()
        if self._process.returncode is not None:
            return False
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        return True

    def abandon(self) -> None:
        """Lets go of it without ending it: in a fork, it is the other's."""
        self._socket.close()
        self._process.returncode = 0

    async def _answer(self, loop: asyncio.AbstractEventLoop) -> Answer:
        (size,) = HEADER.unpack(await self._receive(loop, HEADER.size))
        if size > MAX_FRAME:
            raise MediaCrashed
        answer = _ANSWER.decode(await self._receive(loop, size))
        if not 0 <= answer.follows <= MAX_FRAME:
            raise MediaCrashed
        if answer.follows < LARGE:
            data = bytes(await self._receive(loop, answer.follows))
        else:
            # Megabytes are neither copied nor filled with zeros by who holds the interpreter.
            self._socket.setblocking(True)
            data = await asyncio.to_thread(self._receive_all, answer.follows)
            self._socket.setblocking(False)
        return msgspec.structs.replace(answer, data=data, follows=0)

    def _receive_all(self, size: int) -> bytes:
        """Blocks; ends when the process does."""
        parts: list[bytes] = []
        while size:
            part = self._socket.recv(size, socket.MSG_WAITALL)
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _receive(self, loop: asyncio.AbstractEventLoop, size: int) -> bytearray:
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
            return MediaProcessDied("it closed its socket")
        if code in _OVERTIME:
            return MediaStalled()
        return MediaCrashed() if code in _CRASHES else MediaProcessDied(f"exit code {code}")


def _environment() -> dict[str, str]:
    """None of ours, which may hold keys. One thread for NumPy: others would take address space."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PATH") if name in os.environ}
    return {**kept, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def _import_paths() -> list[str]:
    """Where this process has the child's few packages from: it skips `site`, to start fast."""
    specs = [importlib.util.find_spec(name) for name in _PACKAGES]
    return list(dict.fromkeys(_folder(spec) for spec in specs if spec and spec.origin))


def _folder(spec: ModuleSpec) -> str:
    """That a module or a package lies in."""
    own = Path(spec.origin or "").parent
    return str(own if spec.submodule_search_locations is None else own.parent)
