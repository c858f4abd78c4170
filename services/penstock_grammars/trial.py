"""A grammar is compiled in a process of its own first, which is ended where it takes too much."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import msgspec

from penstock.process import logs
from penstock.process.isolated import (
    CRASHES,
    STANDSTILL,
    Crashed,
    Died,
    Frozen,
    Stalled,
    Standstill,
    cpu_seconds,
)
from penstock.protocol.common import Grammar
from penstock_grammars.child import CompileResult, receive, send
from penstock_grammars.fork_server import FAILED, FORK, MAX_MESSAGE
from penstock_worker.grammar.errors import GrammarError, GrammarUnavailable

log = logs.get(__name__)

CPU_SECONDS = 2.0
"""The seconds that compiling may take, of the processor and not of the clock: what is refused
doesn't depend on what else the machine does."""
ATTEMPTS = 3
"""Processes that a grammar gets when they die or stand still, for no fault of its own."""


class Trial:
    """One such process, made when the first grammar comes, and again after it was ended. Used by
    one thread at a time."""

    def __init__(self, processes: TrialProcesses) -> None:
        self._processes = processes
        self._child: TrialProcess | None = None
        self._ended = False

    @property
    def pid(self) -> int | None:
        """The pid of the process, if there is one."""
        return None if self._child is None else self._child.pid

    def source(self, definition: Grammar) -> str:
        """llguidance's text for it. Raises GrammarError, also where compiling takes too much, and
        GrammarUnavailable where no process can be had that compiles it."""
        message = msgspec.msgpack.encode(definition)
        for _ in range(ATTEMPTS):
            try:
                child = self._child = self._child or self._processes.fork()
                result = self._ask(child, message)
            except (Stalled, Crashed):
                raise GrammarError(
                    f"compiling it takes more than {CPU_SECONDS:g} s of processor time, or too "
                    "much memory"
                ) from None
            except Frozen:
                log.error("a grammar process stood still and was replaced", seconds=STANDSTILL)
            except Died as died:
                log.warning("a grammar process died", reason=str(died))
            else:
                if result.source is None:
                    raise GrammarError(result.reason)
                return result.source
            if self._ended:
                break
        raise GrammarUnavailable(
            "the process that compiles grammars stood still or died, and so did the next ones"
        )

    def end(self) -> None:
        """Has what is being compiled fail, and nothing more compiled. May be called from any
        thread."""
        self._ended = True
        child = self._child
        if child is not None:
            child.kill()

    def _ask(self, child: TrialProcess, message: bytes) -> CompileResult:
        """The answer. Raises Stalled where it takes too much processor time, Frozen, Crashed or
        Died; the process has then ended."""
        watch = ProcessorWatch(child, CPU_SECONDS)
        try:
            send(child.stream, message)
            answer = receive(child.stream)
            if answer is not None:
                return msgspec.msgpack.decode(answer, type=CompileResult)
        except (OSError, msgspec.DecodeError):
            pass  # It ended before it had read or written all.
        finally:
            watch.close()
        self._child = None
        code = child.end()
        raise watch.reason or reason_of(code)


# The worker's end of the process that grammars are tried in forks of.

START_SECONDS = 60.0
"""The seconds of the processor that loading the library may take."""


class _Server:
    def __init__(self, arguments: Sequence[str], niceness: int) -> None:
        """Raises OSError."""
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.loaded = False
        self.niceness = niceness
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock_grammars.fork_server", *arguments],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # Panics of hostile grammars are no news.
            )
        if niceness:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self.process.pid, niceness)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def hurried(self) -> bool:
        """Whether it loads the library, if it still does, with the worker's own priority."""
        if self.loaded or not self.niceness or select.select([self.control], [], [], 0)[0]:
            return True
        try:
            usual = os.getpriority(os.PRIO_PROCESS, os.getpid())
            os.setpriority(os.PRIO_PROCESS, self.process.pid, usual)
        except OSError:  # That takes a privilege.
            return False
        self.niceness = 0
        return True

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.control.close()


class TrialProcess:
    """A fork. Messages go through `stream`, as `child` has them."""

    def __init__(
        self, processes: TrialProcesses, server: _Server, pid: int, connection: socket.socket
    ) -> None:
        self.pid = pid
        self.server = server
        self.stream = cast("BinaryIO", connection.makefile("rwb"))
        self._processes = processes
        connection.close()  # The stream keeps it open.

    def kill(self) -> None:
        """Kills the process; its exit code can still be had. May be called from any thread."""
        if self.server.alive:  # Else its pid may be another's by now.
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def end(self) -> int | None:
        """Ends the process. Returns its exit code, as Popen has it; None if it is unknown."""
        with suppress(OSError):  # Of what can't be written any more.
            self.stream.close()
        return self._processes.ended(self)


class TrialProcesses:
    """Makes them, for several threads. Where the one that they are forks of has died, they have too
    and it is started again, by a thread that must live as long as the worker does."""

    def __init__(self, tokenizer: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._arguments = [str(tokenizer), str(vocab_size), *map(str, eos_token_ids)]
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._over = False

    @property
    def pid(self) -> int | None:
        """The pid of the process that they are forks of, if there is one."""
        server = self._server
        return None if server is None else server.process.pid

    def start(self, niceness: int = 0) -> None:
        """Has the library loaded, with that priority. Returns at once; a failure shows when a fork
        is asked for."""
        with self._lock, suppress(GrammarUnavailable, Died):
            self._started(niceness)

    def fork(self) -> TrialProcess:
        """Another process that tries grammars.

        Raises GrammarError where the library can't be loaded, GrammarUnavailable where no process
        can be had, and Frozen or Died where another attempt may succeed.
        """
        with self._lock:
            server = self._started()
            if not server.hurried():
                self._drop()
                server = self._started()
            self._load(server)
            ours, theirs = socket.socketpair()
            with theirs:
                pid = self._ask(server, FORK, theirs)
            if pid == FAILED:
                ours.close()
                raise GrammarUnavailable("a process that compiles grammars can't be started")
            return TrialProcess(self, server, pid, ours)

    def ended(self, process: TrialProcess) -> int | None:
        """Returns the exit code of a process that is to end; None where it is unknown."""
        with self._lock:
            server = process.server
            if server is not self._server:
                return None  # That one has ended, and its forks with it.
            with suppress(Stalled, Frozen, Crashed, Died):
                return self._ask(server, process.pid)
            return None

    def end(self) -> None:
        """Ends all of them, and makes no more. From any thread."""
        self._over = True
        server = self._server
        if server is not None:
            server.process.kill()  # So the thread that waits for it, with the lock, goes on.
        with self._lock:
            self._drop()

    def _started(self, niceness: int = 0) -> _Server:
        if self._over:
            raise Died("no more are made")
        if self._server is not None:
            return self._server
        try:
            server = _Server(self._arguments, niceness)
        except OSError as error:
            log.error("a grammar process can't be started", reason=str(error))
            raise GrammarUnavailable(
                "the process that compiles grammars can't be started"
            ) from None
        self._server = server
        return server

    def _load(self, server: _Server) -> None:
        if server.loaded:
            return
        try:
            answer = self._exchange(server)
        except (Stalled, Crashed):
            raise GrammarUnavailable(
                "structured output doesn't work here: its process ended"
            ) from None
        result = msgspec.msgpack.decode(answer, type=CompileResult)
        if result.source is None:
            self._drop()
            raise GrammarError(result.reason)
        server.loaded = True

    def _ask(self, server: _Server, request: int, *given: socket.socket) -> int:
        return msgspec.msgpack.decode(self._exchange(server, request, *given), type=int)

    def _exchange(
        self, server: _Server, request: int | None = None, *given: socket.socket
    ) -> bytes:
        """The next message. Raises Stalled, Frozen, Crashed or Died; the process has then ended."""
        watch = ProcessorWatch(server.process, START_SECONDS)
        try:
            if request is not None:
                message = msgspec.msgpack.encode(request)
                socket.send_fds(server.control, [message], [each.fileno() for each in given])
            if answer := server.control.recv(MAX_MESSAGE):
                return answer
        except OSError:
            pass  # It ended before it had read or written all.
        finally:
            watch.close()
        self._drop()
        raise watch.reason or reason_of(server.process.returncode)

    def _drop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()


# Processes that are ended where they take too much processor time, or get none.

LOOK = 0.05
"""Seconds between looks at how much it has taken."""


class WatchedProcess(Protocol):
    """A process that is watched: an own one, or a fork of one."""

    pid: int

    def kill(self) -> None:
        """Kills the process. May be called from any thread."""


class ProcessorWatch:
    """Ends a process, from a thread, where it takes more processor time than so many seconds or
    gets none."""

    def __init__(self, process: WatchedProcess, seconds: float) -> None:
        self.reason: Exception | None = None
        """Why it was ended, if it was: Stalled or Frozen."""
        self._process = process
        self._end = (cpu_seconds(process.pid) or 0.0) + seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the exchange. `reason` is what the process said last."""
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        standstill, looks = Standstill(self._process.pid), 0
        while not self._done.wait(LOOK):
            looks += 1
            if (cpu_seconds(self._process.pid) or 0.0) > self._end:
                self.reason = Stalled()
            elif looks * LOOK >= standstill.every:
                looks = 0
                if standstill.look():
                    self.reason = Frozen()
            if self.reason is not None:
                self._process.kill()
                return


def reason_of(code: int | None) -> Exception:
    """Returns why a process has ended that wasn't ended here: Crashed or Died."""
    return Crashed() if code in CRASHES else Died(f"exit code {code}")
