"""A front end's handle on such a process."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

from penstock.process.isolated_child import HEADER

_PROGRAM = (
    "import importlib, sys; n = int(sys.argv[4]); sys.path[:0] = sys.argv[5:5 + n]; "
    "from penstock.process.isolated_child import run; "
    "run(importlib.import_module(sys.argv[3]).main)"
)
_PACKAGES = ("penstock", "msgspec", "setproctitle")
_OVERTIME = {-signal.SIGPROF, -signal.SIGXCPU}
CRASHES = {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE}
"""Exit codes of a process that its task has brought down."""


class Died(Exception):
    """The process is gone, for a reason that isn't the task's."""


class Stalled(Exception):
    """The task took more time than it may."""


class Crashed(Exception):
    """The task brought the process down."""


class Frozen(Exception):
    """The process got no processor time, or not enough to tell: the fault isn't the task's."""


STANDSTILL = 2.0
"""Seconds without any processor time after which a process at work counts as frozen."""
_LOOKS = 8
"""Looks in that time. They are counted, not seconds: where this process itself stood still, the
first look comes late and the answer may have come meanwhile."""
STARTS = 20.0
"""Processor seconds that a process may take to start, at most."""
BLOCKED = 60.0
"""Seconds without any processor time after which one that waits for a disk counts as frozen: what
reads from a slow disk uses some with each block that it gets."""
LONGEST = 900.0
"""Seconds by the clock after which an exchange ends, whatever the process does."""


class Standstill:
    """Tells a frozen process from one that works. What stalls uses processor time; what is stopped,
    or sits in a frozen cgroup, uses none. One that is ready to run isn't frozen: the machine is
    busy, and may give it a hundredth of the clock's seconds. One that waits for a disk may take
    longer."""

    every = STANDSTILL / _LOOKS
    """Seconds between two looks."""

    def __init__(self, pid: int, most: float = math.inf) -> None:
        """most: processor seconds from now on after which it counts as frozen: its task would have
        ended it before."""
        self._pid = pid
        self._most = most
        self._used = self._begun = cpu_seconds(pid)
        self._still = 0.0  # Looks at which it stood still; less for each while it waits for a disk.
        self.longest = LONGEST if self._begun is not None else min(most, LONGEST)
        """Seconds by the clock after which an exchange ends in any case. Where the system doesn't
        tell processor time, those of the clock are counted in its place."""

    def look(self) -> bool:
        """Whether the process is frozen. False where the system doesn't tell."""
        used = cpu_seconds(self._pid)
        if used is None or self._begun is None:
            return False
        state = state_of(self._pid)
        if used != self._used or state == "R":
            self._still = 0.0
        else:
            self._still += STANDSTILL / BLOCKED if state == "D" else 1.0
        self._used = used
        return self._still >= _LOOKS or used - self._begun > self._most

    def rest(self) -> None:
        """Begins to count anew: the process had nothing to do."""
        self._still = 0.0
        self._begun = cpu_seconds(self._pid)


class Until:
    """How long a blocking exchange goes on."""

    def __init__(self, standstill: Standstill) -> None:
        self._deadline = time.monotonic() + standstill.longest
        self._standstill = standstill
        self._look_at = time.monotonic() + standstill.every

    def wait(self) -> float:
        """Seconds to wait for the socket before the next call. Raises Frozen."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + self._standstill.every
            if self._standstill.look():
                raise Frozen
        if now >= self._deadline:
            raise Frozen
        return min(self._look_at, self._deadline) - now


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
        """packages: that the module imports, in addition to penstock's own.  bounds: passed on.
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
        self._started = False
        """Whether it has answered."""

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
        """Ends the process without keeping the event loop: much memory isn't given back at once."""
        if self._end():
            await asyncio.shield(asyncio.to_thread(self._process.wait))

    def abandon(self) -> None:
        """Lets go of it without ending it: in a fork, it is the other's."""
        self._socket.close()
        self._process.returncode = 0

    @contextlib.asynccontextmanager
    async def _bounded(self, cpu: float) -> AsyncIterator[None]:
        async with unfrozen(self.pid, self._most(cpu)):
            yield
        self._started = True

    def _most(self, cpu: float) -> float:
        return most_of(cpu, started=self._started)

    async def _send(self, payload: bytes) -> None:
        """A frame. Raises OSError."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._socket, HEADER.pack(len(payload)))
        await loop.sock_sendall(self._socket, payload)

    async def _receive(self, size: int) -> bytearray:
        return await receive_exactly(self._socket, size)

    def _send_until(self, until: Until, data: bytes) -> None:
        """Sends so many bytes; blocks. Raises OSError and Frozen."""
        view = memoryview(data)
        while view:
            self._socket.settimeout(until.wait())
            with contextlib.suppress(TimeoutError):
                view = view[self._socket.send(view) :]

    def _receive_until(self, until: Until, size: int) -> bytearray:
        """Receives as `_receive` does; blocks. Raises Frozen, too."""
        buffer = bytearray(size)
        view = memoryview(buffer)
        while view:
            self._socket.settimeout(until.wait())
            with contextlib.suppress(TimeoutError):
                got = self._socket.recv_into(view)
                if not got:
                    raise EOFError
                view = view[got:]
        return buffer

    def _reason(self) -> Exception:
        """Why there is no answer."""
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return Died("it closed its socket")
        if code in _OVERTIME:
            return Stalled()
        return Crashed() if code in CRASHES else Died(f"exit code {code}")

    def _end(self) -> bool:
        """Whether it is to be waited for."""
        self._socket.close()
        if self._process.returncode is not None:
            return False
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        return True


async def receive_exactly(connection: socket.socket, size: int) -> bytearray:
    """So many bytes from the other side. Raises OSError, and EOFError where that has left."""
    loop = asyncio.get_running_loop()
    buffer = bytearray(size)
    view, at = memoryview(buffer), 0
    while at < size:
        got = await loop.sock_recv_into(connection, view[at:])
        if not got:
            raise EOFError
        at += got
    return buffer


@contextlib.asynccontextmanager
async def unfrozen(
    pid: int, cpu: float, rests: Callable[[], bool] = lambda: False
) -> AsyncIterator[None]:
    """Around an exchange with a process. Raises Frozen when the process is, when it has used more
    than so many seconds of processor time, and after `Standstill.longest`.

    rests: whether the process may be waiting for this one; that time doesn't count.
    """
    loop, standstill = asyncio.get_running_loop(), Standstill(pid, cpu)

    bound = asyncio.timeout(standstill.longest)

    async def watch() -> None:
        while rests() or not standstill.look():
            if rests() and not bound.expired():
                standstill.rest()
                bound.reschedule(loop.time() + standstill.longest)
            await asyncio.sleep(standstill.every)
        if not bound.expired():
            bound.reschedule(loop.time())

    watching: list[asyncio.Task[None]] = []
    # Most exchanges have ended by then.
    first = loop.call_later(standstill.every, lambda: watching.append(loop.create_task(watch())))
    try:
        async with bound:
            yield
    except TimeoutError:
        raise Frozen from None
    finally:
        first.cancel()
        for task in watching:
            task.cancel()


def most_of(cpu: float, *, started: bool) -> float:
    """Returns processor seconds after which a process is given up whose tasks bound themselves to
    so many: it hasn't started, or doesn't notice. started: it has answered before."""
    return 3 * cpu + (0.0 if started else STARTS)


def cpu_seconds(pid: int) -> float | None:
    """Processor seconds of all threads of a process, by its own clock (Linux's
    clock_getcpuclockid); None if it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return None


def state_of(pid: int) -> str:
    """A letter, as in proc(5); empty where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].strip()[:1]


def _import_paths(packages: Sequence[str]) -> list[str]:
    """The paths from which this process imports the child's few packages. The child skips `site`,
    to start fast."""
    specs = [importlib.util.find_spec(name) for name in packages]
    return list(dict.fromkeys(_folder(spec) for spec in specs if spec and spec.origin))


def _folder(spec: ModuleSpec) -> str:
    """The folder that a module or a package lies in."""
    own = Path(spec.origin or "").parent
    return str(own if spec.submodule_search_locations is None else own.parent)
