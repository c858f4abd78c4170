"""Processes that the supervisor forks ahead: before it has threads, an event loop or a model.

They share the pages of what it has imported, and import what else their roles need while the model
is looked for. Then they wait for a message that says which process to become. By the time that one
dies, the supervisor has threads, whose locks a fork would find held, so its successor is executed,
or forked elsewhere (`fork_server`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

import msgspec

from penstock.process.children import die_with_parent, set_title
from penstock.process.start_phases import START

MESSAGE = 1 << 16
"""Most bytes of the message that says which process to become."""
FILES = 16
"""Files that it gets, at most."""
THREADS = Path("/proc/self/task")


class Told(msgspec.Struct, frozen=True):
    """Which process to be. words: of its command, without `penstock`.  inherited: numbers that its
    files get, in the order in which they are sent."""

    words: list[str]
    environment: dict[str, str]
    inherited: list[int]


class Role(Protocol):
    """What is done in a fork."""

    def imports(self, role: str) -> None:
        """Imports what every process of the role does. Raises nothing: a failed import fails again,
        with its error, once the process starts its role."""

    def run(self, words: Sequence[str]) -> NoReturn:
        """Runs the command and ends the process."""


class ForkedProcess:
    """One that was forked, with what the supervisor asks of an asyncio.subprocess.Process. Raises
    OSError where it can't be watched."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd = os.pidfd_open(pid)
        self._ended = asyncio.Event()

    def watch(self) -> None:
        """From now on it is waited for in the event loop that runs."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pidfd, self._collect, loop)

    def _collect(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._pidfd)
        self.returncode = _wait(self.pid)
        os.close(self._pidfd)
        self._ended.set()

    async def wait(self) -> int:
        """Waits until it has ended, and returns its exit code, or the negative number of the signal
        that killed it."""
        await self._ended.wait()
        return self.returncode or 0

    def send_signal(self, signum: int) -> None:
        """Nothing happens where it has ended."""
        if self.returncode is None:
            signal.pidfd_send_signal(self._pidfd, signum)

    def drop(self) -> None:
        """Ends one that isn't watched."""
        self.send_signal(signal.SIGKILL)
        self.returncode = _wait(self.pid)
        os.close(self._pidfd)


class ForkedAhead:
    """Waiting processes, by role, each with the socket that its message comes through. Without
    roles, there are none."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[tuple[ForkedProcess, socket.socket]]] = {}

    def fork(self, roles: Sequence[str], run: Role) -> None:
        """Forks one for each of the roles. Forks none, or fewer, where that wouldn't be safe, or
        the system has no room or no pidfds: then they are executed when they are needed."""
        if not is_single_threaded() or not hasattr(os, "pidfd_open"):
            return
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):  # It is closed.
                stream.flush()
        gc.freeze()  # A collection would write to what they share.
        for role in roles:
            try:
                self._waiting.setdefault(role, []).append(_fork(role, run))
            except OSError:
                return

    def take(
        self, words: Sequence[str], inherited: Sequence[int], environment: Mapping[str, str]
    ) -> ForkedProcess | None:
        """A process that is running this command, whose first word is the role; None if there is
        none left. To be called in the event loop."""
        waiting = self._waiting.get(words[0], [])
        message = msgspec.json.encode(Told(list(words), dict(environment), list(inherited)))
        while waiting:
            process, ours = waiting.pop(0)
            try:
                with ours:
                    socket.send_fds(ours, [message], inherited)
            except OSError:
                process.drop()
                continue
            process.watch()
            return process
        return None

    def close(self) -> None:
        """Ends those that are left."""
        for process, ours in [each for some in self._waiting.values() for each in some]:
            ours.close()
            process.drop()
        self._waiting.clear()


def is_single_threaded() -> bool:
    """Whether this process may fork: no other thread can hold a lock."""
    try:
        return len(list(THREADS.iterdir())) == 1
    except OSError:
        return False


def _fork(role: str, run: Role) -> tuple[ForkedProcess, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    with theirs:
        pid = os.fork()
        if pid == 0:
            _become(role, run, theirs, parent)
    try:
        return ForkedProcess(pid), ours
    except OSError:
        os.kill(pid, signal.SIGKILL)
        _wait(pid)
        ours.close()
        raise


def _wait(pid: int) -> int:
    """Waits for the process, and returns its exit code; 255 where the system has thrown it away, as
    SIGCHLD is ignored."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return 255


# The fork's side.


def _become(role: str, run: Role, theirs: socket.socket, parent: int) -> NoReturn:
    try:
        die_with_parent(parent)
        as_executed({theirs.fileno()})
        set_title(role)
        START.report_to(None)
        run.imports(role)
        START.passed("imports ahead")
        order = _hear(theirs)
        if order is not None:
            START.passed("waiting for the model")
            run.run(order.words)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def as_executed(kept: Collection[int]) -> None:
    """Gives this process, a fork, what an executed one begins with: a group of its own, Python's
    own signals, and no files but those that are kept and the standard ones: nothing on stdin, and
    stderr for stdout."""
    os.setpgid(0, 0)
    for signum in (signal.SIGTERM, signal.SIGHUP):
        if callable(signal.getsignal(signum)):
            signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            with contextlib.suppress(OSError):  # The listing's own.
                os.close(int(name))


def _hear(theirs: socket.socket) -> Told | None:
    """Returns the message that says which process to become, with its environment and files; None
    if there will be none."""
    with theirs:
        message, received, *_ = socket.recv_fds(theirs, MESSAGE, FILES)
    if not message:
        return None
    order = msgspec.json.decode(message, type=Told)
    adopt(order, received)
    return order


def adopt(order: Told, received: Sequence[int]) -> None:
    """Takes over the environment and the files that this process is to have."""
    import fcntl

    os.environ.update(order.environment)
    free = max(order.inherited, default=2) + 1  # Where files are while they change places.
    high = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, free) for file in received]
    for file in received:
        os.close(file)
    for file, place in zip(high, order.inherited, strict=True):
        os.dup2(file, place)
        os.close(file)
