"""The renderer processes of a front end, shared by its templates."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache

from penstock.errors import InvalidRequest, Overloaded
from penstock.process import logs
from penstock.process.isolated import (
    STANDSTILL,
    Crashed,
    Died,
    Frozen,
    Stalled,
)
from penstock.text.render.process import RenderProcess
from penstock.text.render.wire import Bounds, Fill, Filled, TemplateSource

log = logs.get(__name__)


MAX_PROCESSES = 4


PATIENCE = 0.1
"""Seconds that a filling waits for a process before another is started: as long as one that takes
its time may hold up the others."""


MAX_WAIT = 30.0
"""Seconds after which it is refused: all processes are busy with templates that stall."""


ATTEMPTS = 3
"""Processes that a filling gets when they die under it, for no fault of its own."""


_Waiter = Future[RenderProcess]


class RenderPool:
    """Safe to use from any thread and any event loop.

    One process is kept warm as long as the pool has users; more are started while it is busy.
    """

    def __init__(self, bounds: Bounds | None = None) -> None:
        self._bounds = bounds or Bounds()
        self._lock = threading.Lock()
        self._idle: list[RenderProcess] = []
        self._waiting: deque[_Waiter] = deque()
        self._count = 0
        self._users = 0
        os.register_at_fork(after_in_child=self._forget)

    @property
    def pids(self) -> list[int]:
        """Ids of the processes that have nothing to do."""
        return [process.pid for process in self._idle]

    def join(self) -> Callable[[], None]:
        """Makes the caller a user, and warms a process. The result, called once, ends that."""
        with self._lock:
            self._users += 1
            start = not self._count
            self._count += start
        if start:
            self._give_back(self._start())
        return self._leave

    def filled(self, source: TemplateSource, fill: Fill) -> Filled:
        """A template's text, and its stand-ins; blocks. Raises InvalidRequest for what the template
        can't take, and Overloaded."""
        for _ in range(ATTEMPTS):
            process = self._take()
            try:
                answer = process.ask(source, fill)
            except Died:
                self._drop(process)
                continue
            except BaseException as error:
                self._drop(process)
                raise _explained(error, self._bounds) from None
            self._settle(process, answer)
            return checked(answer, fill.max_length)
        raise _dead()

    async def filled_async(self, source: TemplateSource, fill: Fill) -> Filled:
        """Fills a template as `filled` does, in an event loop, which goes on meanwhile."""
        for _ in range(ATTEMPTS):
            process = await self._take_async()
            try:
                answer = await process.ask_async(source, fill)
            except Died:
                self._drop(process)
                continue
            except BaseException as error:
                self._drop(process)
                raise _explained(error, self._bounds) from None
            self._settle(process, answer)
            return checked(answer, fill.max_length)
        raise _dead()

    def _take(self) -> RenderProcess:
        process, waiter = self._claim()
        until = time.monotonic() + MAX_WAIT
        while process is None:
            try:
                return waiter.result(PATIENCE)
            except TimeoutError:
                process = self._instead(waiter, until)
        return process

    async def _take_async(self) -> RenderProcess:
        process, waiter = self._claim()
        until = time.monotonic() + MAX_WAIT
        while process is None:
            try:
                async with asyncio.timeout(PATIENCE):
                    # Shielded: to cancel the one would cancel the other.
                    return await asyncio.shield(asyncio.wrap_future(waiter))
            except TimeoutError:
                process = self._instead(waiter, until)
            except asyncio.CancelledError:
                if not waiter.cancel():
                    self._give_back(waiter.result())
                raise
        return process

    def _claim(self) -> tuple[RenderProcess | None, _Waiter]:
        """A process that is idle, or the first one of all, or a place in the queue."""
        waiter: _Waiter = Future()
        with self._lock:
            if self._idle:
                return self._idle.pop(), waiter
            if self._count:
                self._waiting.append(waiter)
                return None, waiter
            self._count += 1
        return self._start(), waiter

    def _instead(self, waiter: _Waiter, until: float) -> RenderProcess | None:
        """What a waiter gets that has waited for a while: another process, or None to go on."""
        with self._lock:
            more = self._count < MAX_PROCESSES
            if more or time.monotonic() > until:
                if not waiter.cancel():
                    return waiter.result()
                self._waiting.remove(waiter)
            self._count += more
        if more:
            return self._start()
        if waiter.cancelled():
            raise Overloaded("the chat template's renderers are busy", retry_after=1.0)
        return None

    def _start(self) -> RenderProcess:
        try:
            return RenderProcess(self._bounds)
        except OSError as error:
            with self._lock:
                self._count -= 1
            log.error("a template renderer can't be started", reason=str(error))
            raise Overloaded(
                "a process for the chat template can't be started", retry_after=1.0
            ) from None

    def _settle(self, process: RenderProcess, answer: Filled) -> None:
        if answer.leaving:
            self._drop(process)
        else:
            self._give_back(process)

    def _give_back(self, process: RenderProcess) -> None:
        with self._lock:
            while self._waiting:
                waiter = self._waiting.popleft()
                if waiter.set_running_or_notify_cancel():
                    waiter.set_result(process)
                    return
            if self._users and not self._idle:
                self._idle.append(process)
                return
            self._count -= 1
        process.close()

    def _drop(self, process: RenderProcess) -> None:
        """Ends a process; waiting requests get a new one."""
        process.close()
        with self._lock:
            self._count -= 1
            start = not self._count and bool(self._users or self._waiting)
            self._count += start
        if start:
            with contextlib.suppress(Overloaded):
                self._give_back(self._start())

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            unused = [] if self._users else self._idle
            if unused:
                self._idle = []
                self._count -= len(unused)
        for process in unused:
            process.close()

    def _forget(self) -> None:
        """Lets go of the processes, in a fork: they are the other's."""
        for process in self._idle:
            process.abandon()
        self._lock = threading.Lock()
        self._idle, self._count = [], 0
        self._waiting.clear()


@cache
def shared_pool() -> RenderPool:
    """Returns this process's pool."""
    return RenderPool()


def checked(answer: Filled, max_length: int) -> Filled:
    """The answer, if it is a text. Raises InvalidRequest."""
    if answer.outcome == "text":
        return answer
    if answer.outcome == "invalid":
        raise InvalidRequest(answer.text, param=answer.param)
    complaint = {
        "refused": f"the chat template refused the messages: {answer.text}",
        "failed": f"the chat template can't take these messages: {answer.text}",
        "uncompilable": f"the model's chat template doesn't compile: {answer.text}",
        "too_long": (
            f"the conversation has more than {max_length} characters once the chat template is "
            "filled"
        ),
        "memory": "the chat template needs more memory for these messages than it may have",
    }[answer.outcome]
    raise InvalidRequest(complaint, param="messages")


def _explained(error: BaseException, bounds: Bounds) -> BaseException:
    if isinstance(error, Stalled):
        log.warning("a chat template stalled and was stopped", seconds=bounds.cpu)
        return InvalidRequest(
            f"the chat template takes longer than {bounds.cpu:g} s for these messages",
            param="messages",
        )
    if isinstance(error, Frozen):
        log.error("a template renderer stood still and was replaced", seconds=STANDSTILL)
        return Overloaded(
            "the process that fills chat templates stood still, and was replaced", retry_after=1.0
        )
    if isinstance(error, Crashed):
        log.error("a chat template crashed its renderer")
        return InvalidRequest(
            "the chat template brought its process down on these messages", param="messages"
        )
    return error


def _dead() -> Overloaded:
    log.error("template renderers die", attempts=ATTEMPTS)
    return Overloaded("the chat template's process died, and so did the next ones", retry_after=1.0)
