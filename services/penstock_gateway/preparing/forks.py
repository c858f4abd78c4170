"""The process that preparers are forks of: its own side, and the gateway's handle on it.

It is itself a fork of the gateway, made when the first preparer is wanted and again when a model's
tokenizer or limits have changed: so preparers have the endpoints, tokenizers and templates that the
gateway has, in the same memory. It has one thread and next to no work, so that a preparer takes a
millisecond to begin whatever the gateway is doing. The gateway's other threads don't exist in it;
none of their locks is one that preparers take.
"""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, Protocol

from penstock.process import logs
from penstock.process.children import die_with_parent, set_title
from penstock.process.isolated_child import HEADER

log = logs.get(__name__)


class PreparerWork(Protocol):
    """What a preparer does."""

    def warm(self) -> None:
        """Done once for all of them, before the first is forked."""

    def run(self, connection: socket.socket) -> None:
        """Serves the gateway, until the other end is closed."""


_FORK, _KILL = b"f", b"k"
_PID = struct.Struct("=i")
_ENDED = struct.Struct("=ii")
"""A process and its status, as waitpid has it."""
_STDERR = 2


class PreparerForks:
    """The gateway's handle on the process. Belongs to one event loop, which it reads in.

    Raises OSError where the system has no room.
    """

    def __init__(self, work: PreparerWork) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gateway = os.getpid()
        pid = os.fork()
        if pid == 0:
            _begin(gateway, theirs, work)
        theirs.close()
        ours.setblocking(False)
        self.pid = pid
        self._socket = ours
        self._loop = asyncio.get_running_loop()
        self._ends: dict[int, asyncio.Future[int]] = {}
        self._open = True
        self._used = 0
        self._retired = False
        self._loop.add_reader(ours, self._hear)

    @property
    def is_open(self) -> bool:
        """Whether it can make forks: it runs, and wasn't closed."""
        return self._open

    def fork(self) -> socket.socket:
        """Our end of a new preparer's socket; what comes first is its process id. Raises
        OSError."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._socket, [_FORK], [theirs.fileno()])
        except OSError:
            ours.close()
            raise
        ours.setblocking(False)
        self._used += 1
        return ours

    def end(self, pid: int) -> None:
        """Ends one of its forks; one that has ended stays so. To be called once for each."""
        if pid:
            with suppress(OSError):
                self._socket.send(_KILL + _PID.pack(pid))
        self._used -= 1
        self._leave_if_unused()

    def retire(self) -> None:
        """Has it leave with the last of its forks."""
        self._retired = True
        self._leave_if_unused()

    def _leave_if_unused(self) -> None:
        if self._retired and not self._used:
            self.close()

    async def status_of(self, pid: int, patience: float) -> int | None:
        """What a fork of it has ended with: an exit code, or a signal's number, negative. None
        where that isn't known within so many seconds."""
        end = self._ends.setdefault(pid, self._loop.create_future())
        try:
            async with asyncio.timeout(patience):
                return os.waitstatus_to_exitcode(await asyncio.shield(end))
        except TimeoutError:
            return None
        finally:
            self._ends.pop(pid, None)

    def close(self) -> None:
        """Ends it with all of its forks. Idempotent."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._socket)
        self._socket.close()
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _hear(self) -> None:
        while True:
            try:
                message = self._socket.recv(_ENDED.size)
            except BlockingIOError:
                return
            except OSError:
                message = b""
            if len(message) != _ENDED.size:
                log.warning("the process that forks preparers has ended; another takes its place")
                self.close()
                return
            pid, status = _ENDED.unpack(message)
            self._note(pid, status)

    def _note(self, pid: int, status: int) -> None:
        end = self._ends.setdefault(pid, self._loop.create_future())
        if not end.done():
            end.set_result(status)
        while len(self._ends) > _REMEMBERED:
            self._ends.pop(next(iter(self._ends)))


_REMEMBERED = 256
"""Processes whose ends are remembered until somebody asks."""


def _begin(gateway: int, control: socket.socket, work: PreparerWork) -> NoReturn:
    """The fork's first and last function."""
    try:
        gc.freeze()  # A collection would write to what is shared.
        _leave_the_gateway(control)
        die_with_parent(gateway)
        set_title("preparers")
        work.warm()
        gc.freeze()
        _Server(control, work).serve()
    except BaseException:
        # Nothing above this may run in a fork of the gateway.
        log.error("the process that forks preparers failed", exception=True)
    finally:
        os._exit(0)


def _leave_the_gateway(control: socket.socket) -> None:
    """Lets go of the gateway's event loop, signal handlers and open files."""
    asyncio._set_running_loop(None)
    asyncio.set_event_loop_policy(None)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the gateway's parent.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for entry in list(Path("/proc/self/fd").iterdir()):
        descriptor = int(entry.name)
        if descriptor > _STDERR and descriptor != control.fileno():
            with suppress(OSError):
                os.close(descriptor)


class _Server:
    """Forks, and waits for forks that have ended."""

    def __init__(self, control: socket.socket, work: PreparerWork) -> None:
        control.setblocking(True)
        self._control = control
        self._work = work
        self._children: set[int] = set()

    def serve(self) -> None:
        """Returns when the gateway has closed its end."""
        wake, waken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == wake:
                    with suppress(BlockingIOError):
                        os.read(wake, 4096)
                elif not self._take(wake, waken):
                    return
            self._collect()

    def _take(self, *pipe: int) -> bool:
        """Does what the gateway says. False: it has gone."""
        message, descriptors, _, _ = socket.recv_fds(self._control, 1 + _PID.size, 1)
        if not message:
            return False
        if message[:1] == _KILL:
            (pid,) = _PID.unpack(message[1:])
            if pid in self._children:
                os.kill(pid, signal.SIGKILL)
            return True
        self._fork(descriptors[0], pipe)
        return True

    def _fork(self, descriptor: int, pipe: tuple[int, ...]) -> None:
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            os.close(descriptor)  # Which tells the gateway.
            return
        if pid:
            self._children.add(pid)
            # Told here, not by the fork: however long that takes to begin, the gateway watches it,
            # and not this process, which has nothing to do meanwhile.
            with suppress(OSError):
                os.write(descriptor, HEADER.pack(pid))
            os.close(descriptor)
            return
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in pipe:
                os.close(each)
            self._control.close()
            die_with_parent(server)
            set_title("preparer")
            self._work.run(socket.socket(fileno=descriptor))
        except (BrokenPipeError, ConnectionResetError):
            pass  # The gateway has gone.
        except BaseException:
            log.error("a preparer failed", exception=True)
        finally:
            os._exit(0)

    def _collect(self) -> None:
        while self._children:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._children.clear()
                return
            if not pid:
                return
            self._children.discard(pid)
            self._control.send(_ENDED.pack(pid, status))
