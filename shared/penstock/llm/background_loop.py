"""An event loop in a thread of its own, for blocking callers."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

Value = TypeVar("Value")


def _run(made: Future[asyncio.AbstractEventLoop]) -> None:
    """Makes the loop and runs it: here, where no Ctrl-C leaves it half made."""
    try:
        loop = asyncio.new_event_loop()
    except BaseException as error:
        made.set_exception(error)
        return
    made.set_result(loop)
    loop.run_forever()


class BackgroundLoop:
    """A daemon thread, which is also the thread that a launched engine is tied to.

    It stays with the process that made it: a child of os.fork() has the object and no thread.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        made: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=_run, args=(made,), daemon=True, name="penstock")
        self._thread.start()
        self._loop = made.result()

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that has the thread."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Raises RuntimeError in a child of os.fork(), where nothing would ever answer."""
        if self.forked:
            raise RuntimeError(
                "this LLM belongs to the process that made it, and this one is its child by "
                "os.fork(); make an LLM of its own here, or start processes with the method 'spawn'"
            )

    def start(self, work: Coroutine[Any, Any, Value]) -> Future[Value]:
        """Begins a coroutine there; the future can be waited for, or cancelled, from here.

        Raises RuntimeError in a child of os.fork().
        """
        try:
            self.check()
        except RuntimeError:
            work.close()  # Or Python says that nobody awaited it.
            raise
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Runs a coroutine there to its end. An interruption here (Ctrl-C) cancels it."""
        running = self.start(work)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    def stop(self) -> None:
        """Ends the loop and its thread. Call it once."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
