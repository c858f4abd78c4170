"""The process that gateways are forks of: the first ones, and those that take the place of one that
died.

What gateways import, make of it and read takes nearly all of the time of their start, 1 s of a
processor each, and seconds on one that is busy; here it is done once for all of them, and they
share its pages. Nothing else happens in this process, so it has no second thread, whose locks a
fork would find held. A fork is made by a fork that ends at once: so its parent becomes the
supervisor, which waits for it as for others, and which it doesn't outlive. Where this process can't
answer, gateways are executed.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec

from penstock.process import logs
from penstock.process.children import die_with_parent
from penstock.process.isolated import state_of
from penstock.process.start_phases import START
from penstock.supervisor.ahead import (
    FILES,
    MESSAGE,
    ForkedAhead,
    ForkedProcess,
    Role,
    Told,
    adopt,
    as_executed,
    is_single_threaded,
)
from penstock.supervisor.child import Child, ChildSpec
from penstock.supervisor.restarts import RestartPolicy, RestartSettings

log = logs.get(__name__)

PATIENCE = 30.0
"""Seconds for the first forks of a process, which wait for what it imports: several executed
gateways would import the same at the same time."""
SOON = 5.0
"""Seconds for later ones. By then, one that is executed serves on most machines."""
LIVES = 2
"""Lives of the process for which one fork is waited: what it imports may be what ends it."""
LOOK_AT_SERVER = 0.5
"""Seconds between looks at the process while a fork is waited for. That ends when two in a row find
it stopped (SIGSTOP) or gone. One isn't enough: the supervisor may have been stopped together with
it, and what has died is mostly back by the next."""
_DOWN = ("T", "Z", "")
RESTARTS = RestartSettings(max_delay=60.0)
REPARENTED = 5.0
"""Seconds in which the kernel gives a fork its new parent."""
LOOK = 0.02
"""Seconds between looks for processes that have ended, while there are any."""
LOOKS = 50
"""Looks in a row that find an ended process before it is taken for an orphan."""
_PR_SET_CHILD_SUBREAPER = 36
_GO = b"go"
ARE_YOU_READY = b"are you ready"
"""Is answered by anything."""
READ = b"read"
"""Isn't answered. Any other message says what to be."""


class ForkServer:
    """The supervisor's side. make: of the process, which gets this file descriptor.  listed: file
    that tells each such process the folders of models.

    Raises OSError where the system can't do it.
    """

    def __init__(self, make: Callable[[int], Child], listed: Path) -> None:
        _adopt_orphans()
        self._make = make
        self._listed = listed
        self._folders: list[str] = []
        self._process = _Process(make)

    @property
    def child(self) -> Child:
        """The process that forks."""
        return self._process.child

    async def stop(self) -> None:
        """Ends it at once: it has nothing to bring to an end."""
        await self._process.end()

    async def run(self) -> None:
        """Keeps it running until it is stopped or can't be started, and waits for orphans until
        this is cancelled."""
        self._process.begin()
        try:
            await _collect_orphans()
        finally:
            self._process.close()

    def read(self, folder: Path) -> None:
        """From now on, gateways needn't read the tokenizer of the prepared model there."""
        if str(folder) in self._folders:
            return
        self._folders.append(str(folder))
        with suppress(OSError):  # There is no room: gateways read it.
            self._listed.write_text("\n".join(self._folders), encoding="utf-8")
            self._process.read()

    async def renew(self) -> bool:
        """Has another process take its place, which imports and reads anew. Until that is ready,
        the former one goes on. False: it wasn't in time, and the former one stays. If that doesn't
        run, it goes in any case, and gateways may be executed for a while."""
        successor = _Process(self._make)
        successor.begin()
        taken = False
        try:
            taken = await successor.is_ready(PATIENCE) or not self._process.runs
        finally:
            if not taken:
                await successor.end()
        if taken:
            former, self._process = self._process, successor
            await former.end()
        return taken

    async def fork(
        self, words: Sequence[str], inherited: Sequence[int], environment: Mapping[str, str]
    ) -> ForkedProcess | None:
        """A process that is running this command; None if there is none in time."""
        message = msgspec.json.encode(Told(list(words), dict(environment), list(inherited)))
        while True:
            asked = self._process
            forked = await asked.fork(message, inherited)
            if forked is not None or asked is self._process:
                return forked
            # It was renewed meanwhile.


class _Process:
    """One that forks, as the supervisor sees it: kept running, and asked over a socket that its
    successors after a death share. Raises OSError."""

    def __init__(self, make: Callable[[int], Child]) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self.child = make(self._theirs.fileno())
        self._running: asyncio.Task[None] | None = None
        self._forking: int | None = None
        """The pid that made the latest fork."""

    def begin(self) -> None:
        """From now on it is kept running."""
        self._running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        if (reason := await self.child.run()) is not None:
            log.warning("gateways are executed from now on", why=reason)
        self.close()

    async def end(self) -> None:
        """SIGKILL."""
        await self.child.stop(signal.SIGKILL)
        if self._running is not None:
            await self._running

    def close(self) -> None:
        """Closes it; callers that wait for an answer get an error."""
        self._theirs.close()
        self._ours.close()

    @property
    def runs(self) -> bool:
        """Whether there is a process that isn't stopped (SIGSTOP)."""
        pid = self.child.pid
        return pid is not None and state_of(pid) not in _DOWN

    def read(self) -> None:
        """Has it look at the list of folders, which it reads by itself when it starts. Raises
        OSError."""
        self._ours.send(READ)

    async def is_ready(self, patience: float) -> bool:
        """Returns once it could fork. False: it isn't in time (seconds), or can't be started."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(patience):
                # One that dies over it is asked again, as it is started again.
                while not await self._answer_to(ARE_YOU_READY):
                    pass
            return True
        return False

    async def _answer_to(self, question: bytes) -> bytes:
        """Empty: it ended over it. Raises OSError."""
        with self._ask(question) as answering:
            return await asyncio.get_running_loop().sock_recv(answering, 32)

    def _ask(self, question: bytes, files: Sequence[int] = ()) -> socket.socket:
        """Sends the question, and returns the socket on which the answer comes. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            try:
                socket.send_fds(self._ours, [question], [theirs.fileno(), *files])
            except OSError:
                ours.close()
                raise
        return ours

    async def fork(self, order: bytes, inherited: Sequence[int]) -> ForkedProcess | None:
        """Returns a process forked for the order; None if there is none in time."""
        with suppress(OSError, ValueError, TimeoutError), self._ask(order, inherited) as answering:
            async with asyncio.timeout(self._patience) as waiting:
                looking = asyncio.create_task(self._look(waiting))
                try:
                    pid = await asyncio.get_running_loop().sock_recv(answering, 32)
                finally:
                    looking.cancel()
            process = ForkedProcess(int(pid))  # Empty: it has ended without a fork.
            self._forking = self.child.pid
            process.watch()
            answering.send(_GO)  # One that doesn't get that ends, as its place may be filled.
            return process
        return None

    @property
    def _patience(self) -> float:
        """Seconds. What has forked is past its imports."""
        return SOON if self.runs and self.child.pid == self._forking else PATIENCE

    async def _look(self, waiting: asyncio.Timeout) -> None:
        """Ends the wait for a fork once the process is down, or has died time and again. One that
        is to be started later is started now, and has as long for its imports as the first."""
        loop = asyncio.get_running_loop()
        down, lives, seen = 0, 0, None
        if not self.runs:
            seen = self.child.pid
            self.child.hurry()
        while down < 2 and lives <= LIVES:
            if self.child.pid != seen:
                seen, lives = self.child.pid, lives + 1
                waiting.reschedule(loop.time() + self._patience)
            await asyncio.sleep(LOOK_AT_SERVER)
            down = 0 if self.runs else down + 1
        waiting.reschedule(loop.time())


def kept_child(spec: ChildSpec, failure_file: Path, ahead: ForkedAhead) -> Child:
    """The process as a child that is tried again for ever, at last once a minute: no start fails
    for it, and gateways are executed meanwhile."""
    policy = RestartPolicy(RESTARTS)
    return Child(spec, failure_file, system_was_ready=lambda: True, policy=policy, ahead=ahead)


def _adopt_orphans() -> None:
    """Descendants without a parent become this process's. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


async def _collect_orphans() -> None:
    """Reaps processes that others have orphaned, such as the helpers of a gateway that was
    killed."""
    loop, died = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGCHLD, died.set)
    try:
        while True:
            died.clear()
            await _collect()
            await died.wait()
    finally:
        loop.remove_signal_handler(signal.SIGCHLD)


async def _collect() -> None:
    """Returns once no ended process is left. One that stays for long is an orphan, and is reaped
    here."""
    seen, looks = None, 0
    while (ended := _ended()) is not None:
        looks = looks + 1 if ended == seen else 0
        seen = ended
        with suppress(OSError):  # Who started it was faster.
            if looks >= LOOKS or _is_orphan(ended):
                os.waitpid(ended, os.WNOHANG)
                continue
        await asyncio.sleep(LOOK)


def _is_orphan(pid: int) -> bool:
    """Whether it belongs to a child's group, as none of what is started here does. Raises
    OSError."""
    return os.getpgid(pid) not in (pid, os.getpgrp())


def _ended() -> int | None:
    with suppress(ChildProcessError):
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return None if found is None else found.si_pid
    return None


def serve(fd: int, run: Role, read: Callable[[], None] = lambda: None) -> None:
    """Forks for the process at the other end of the socket. Returns when that is closed. read:
    called when there is more to read for forks; raises nothing."""
    supervisor = os.getppid()
    gc.freeze()  # A collection would write to what forks share.
    with socket.socket(fileno=fd) as asking:
        while True:
            message, files, *_ = socket.recv_fds(asking, MESSAGE, FILES)
            if not message:
                return
            with suppress(OSError):  # There is no room; the supervisor sees the files closed.
                if message == ARE_YOU_READY:
                    os.write(files[0], b"ready")
                elif message == READ:
                    read()
                    gc.freeze()
                else:
                    _fork(message, files, run, supervisor)
            for file in files:
                os.close(file)


def _fork(message: bytes, files: list[int], run: Role, supervisor: int) -> None:
    if not is_single_threaded():
        log.error("gateways can't be forked", why="a module that they import has started a thread")
        return
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return
    try:
        if os.fork() == 0:
            _become(message, files, run, supervisor)
    finally:
        os._exit(0)


def _become(message: bytes, files: list[int], run: Role, supervisor: int) -> NoReturn:
    try:
        deadline = time.monotonic() + REPARENTED
        # The kernel doesn't notify when it has done so.
        while os.getppid() != supervisor and time.monotonic() < deadline:
            time.sleep(0.001)
        die_with_parent(supervisor)
        as_executed(files)
        asked, *inherited = files
        if not _is_awaited(asked):
            os._exit(0)
        order = msgspec.json.decode(message, type=Told)
        adopt(order, inherited)
        START.begin_anew()
        run.run(order.words)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _is_awaited(asked: int) -> bool:
    """Tells who asked for a fork its pid. Returns whether somebody still waits for it."""
    with socket.socket(fileno=asked) as answer, suppress(OSError):
        answer.send(str(os.getpid()).encode())
        return answer.recv(len(_GO)) == _GO
    return False
