"""A child process of the supervisor: started, watched, started again, stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from penstock.errors import StartupError
from penstock.process import logs
from penstock.process.isolated import state_of
from penstock.process.start_phases import SUFFIX, StartPhase, read_phases
from penstock.supervisor.ahead import ForkedAhead
from penstock.supervisor.restarts import OUT_OF_MEMORY, GiveUp, RestartPolicy, describe

log = logs.get(__name__)

STOPPED_SECONDS = 30.0
"""Seconds for which a process may be stopped (SIGSTOP) before it is killed: less than requests wait
for an engine core."""
STOPPED_LOOKS = 10
"""Looks in that time. They are counted, so that what stopped together with the supervisor isn't
killed when they wake."""


@dataclass(frozen=True)
class ChildSpec:
    """What to run. name: as ps and the logs show it.  arguments: those of the penstock command.
    inherited: file descriptors that it gets.  grace: seconds between SIGTERM and SIGKILL.
    environment: variables in addition to the supervisor's own."""

    name: str
    arguments: tuple[str, ...]
    inherited: tuple[int, ...] = ()
    grace: float = 3.0
    environment: tuple[tuple[str, str], ...] = ()


class Running(Protocol):
    """What is asked of a process, as asyncio.subprocess.Process has it."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    async def wait(self) -> int: ...

    def send_signal(self, signal: int, /) -> None: ...


class ForkSource(Protocol):
    """Forks processes once the supervisor can't."""

    async def fork(
        self, words: Sequence[str], inherited: Sequence[int], environment: Mapping[str, str]
    ) -> Running | None:
        """One that is running this command; None if there is none in time."""
        ...


NOBODY = ForkedAhead()


class Child:
    """Keeps one process running until it is stopped or can't be started. ahead: from where its
    first process comes, if there is one for it.  forks: makes any other. What neither has is
    executed."""

    def __init__(
        self,
        spec: ChildSpec,
        failure_file: Path,
        *,
        system_was_ready: Callable[[], bool],
        policy: RestartPolicy | None = None,
        ahead: ForkedAhead = NOBODY,
        forks: ForkSource | None = None,
    ) -> None:
        self.spec = spec
        self._failure_file = failure_file
        self._system_was_ready = system_was_ready
        self._policy = policy or RestartPolicy()
        self._ahead = ahead
        self._forks = forks
        self._process: Running | None = None
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()
        self._renewing = False

    @property
    def pid(self) -> int | None:
        """Id of the process, if it has been started."""
        return None if self._process is None else self._process.pid

    def start_phases(self) -> list[StartPhase]:
        """What it has said of its start."""
        return read_phases(self._failure_file.with_suffix(SUFFIX))

    async def run(self) -> str | None:
        """Returns why the child can't go on, or None when it was stopped."""
        while not self._stopping.is_set():
            try:
                process = await self._next()
            except StartupError as error:
                if not self._system_was_ready():
                    return str(error)
                # The machine may have room again in a while; what runs goes on.
                await self._retry(OUT_OF_MEMORY, str(error))
                continue
            if process is None:
                return None
            self._process = process
            self._policy.started(time.monotonic())
            if self._stopping.is_set():
                self.kill()  # `stop` came while it was being started, and found nothing to stop
            with ended_when_stopped(process, self.spec.name) as ended:
                code = await process.wait()
            if self._stopping.is_set():
                return None
            if self._renewing:
                continue
            how = f"pid {process.pid}, {''.join(ended) or describe(code)}"
            if (reason := await self._retry(code, how)) is not None:
                self._stopping.set()
                return reason
        return None

    async def _next(self) -> Running | None:
        """The next process; None if it was stopped before there was one. Raises StartupError."""
        while not self._stopping.is_set():
            self._renewing = False
            forked = await self._forked()
            if forked is None:
                break
            if not self._renewing and not self._stopping.is_set():
                return forked
            # It was asked for before that, and may have what was installed before.
            _signal(forked, signal.SIGKILL)
            await forked.wait()
        return None if self._stopping.is_set() else await start(self.spec, self._failure_file)

    async def _forked(self) -> Running | None:
        words = _words(self.spec, self._failure_file)
        asked = words, self.spec.inherited, dict(self.spec.environment)
        process: Running | None = self._ahead.take(*asked) if self._process is None else None
        if process is None and self._forks is not None:
            process = await self._forks.fork(*asked)
        if process is not None:
            log.info("child started", child=self.spec.name, pid=process.pid, forked=True)
        return process

    async def _retry(self, code: int, how: str) -> str | None:
        """Waits after a death for as long as the policy says, or returns why the child is given
        up."""
        reason = read_failure(self._failure_file)
        decision = self._policy.died(
            code, time.monotonic(), system_was_ready=self._system_was_ready()
        )
        if isinstance(decision, GiveUp):
            return f"{self.spec.name}: {reason or decision.why}"
        log.warning("child died", child=self.spec.name, how=how, restart_in=decision.delay)
        await self._pause(decision.delay)
        return None

    async def _pause(self, seconds: float) -> None:
        """Waits for so long, or until it is stopped, or wanted at once."""
        self._hurried.clear()
        ends = [asyncio.create_task(each.wait()) for each in (self._stopping, self._hurried)]
        try:
            await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()

    def hurry(self) -> None:
        """Ends the pause after a death, if it is in one."""
        self._hurried.set()

    async def stop(self, signum: int = signal.SIGTERM) -> None:
        """`signum`, then SIGKILL after the grace time. Returns when the process is gone."""
        self._stopping.set()
        if self._process is not None:
            await self._end(self._process, signum)

    async def renew(self, signum: int) -> None:
        """Has the process leave on `signum`, within the grace time, and returns when `run` has
        started its successor, also where it has just died: by a fork that was asked for after this
        was called, or executed. Does nothing once `run` has given it up."""
        process = self._process
        if self._stopping.is_set():
            return
        self._renewing = True
        if process is not None and process.returncode is None:
            await self._end(process, signum)
        while self._process is process and not self._stopping.is_set():
            await asyncio.sleep(0.01)

    async def _end(self, process: Running, signum: int) -> None:
        _signal(process, signum)
        try:
            await asyncio.wait_for(process.wait(), self.spec.grace)
        except TimeoutError:
            name = signal.Signals(signum).name
            log.warning(f"child ignored {name}", child=self.spec.name, pid=process.pid)
            _signal(process, signal.SIGKILL)
            await process.wait()

    def kill(self) -> None:
        """SIGKILL, now."""
        self._stopping.set()
        if self._process is not None:
            _signal(self._process, signal.SIGKILL)


async def start(
    spec: ChildSpec, failure_file: Path, *, stdout: int | None = None
) -> asyncio.subprocess.Process:
    """Starts the penstock command with the spec's arguments, in a process group of its own.

    A terminal's Ctrl-C so reaches the supervisor alone, which stops the others in order.  What a
    child prints goes to stderr unless `stdout` says otherwise: stdout is the supervisor's.
    Raises StartupError when the machine has no room for a process.
    """
    words = _words(spec, failure_file)
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "penstock", *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sys.stderr.fileno() if stdout is None else stdout,
            pass_fds=spec.inherited,
            env={**os.environ, **dict(spec.environment)},
            process_group=0,
        )
    except OSError as error:
        raise StartupError(f"{spec.name}: can't start a process: {error.strerror}") from None
    log.info("child started", child=spec.name, pid=process.pid)
    return process


def _words(spec: ChildSpec, failure_file: Path) -> tuple[str, ...]:
    """The words of the penstock command. What an earlier failure left in its file is removed."""
    failure_file.unlink(missing_ok=True)
    supervision = ("--supervised-by", str(os.getpid()), "--failure-file", str(failure_file))
    return (*spec.arguments, *supervision)


@contextmanager
def ended_when_stopped(process: Running, name: str) -> Iterator[list[str]]:
    """Around the wait for a process: kills it once it has been stopped for STOPPED_SECONDS, and
    puts the reason into the list. Its sessions are lost long before, but what it holds is not free,
    and nothing takes its place. One that a debugger holds is left alone."""
    reasons: list[str] = []

    async def watch() -> None:
        stopped = 0
        while stopped < STOPPED_LOOKS:
            await asyncio.sleep(STOPPED_SECONDS / STOPPED_LOOKS)
            stopped = stopped + 1 if state_of(process.pid) == "T" else 0
        log.error("child stands still and is killed", child=name, pid=process.pid)
        reasons.append(f"killed after it was stopped (SIGSTOP) for {STOPPED_SECONDS:g} s")
        _signal(process, signal.SIGKILL)

    watching = asyncio.create_task(watch())
    try:
        yield reasons
    finally:
        watching.cancel()


def read_failure(file: Path) -> str:
    """Why a child failed, in its own words; empty if it didn't say."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _signal(process: Running, signum: int) -> None:
    try:
        process.send_signal(signum)
    except ProcessLookupError:
        pass
