"""An event loop in a thread of its own, for blocking callers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

Value = TypeVar("Value")


class BackgroundLoop:
    """A daemon thread, which is also the thread that a launched engine is tied to."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="penstock")
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, Value]) -> Future[Value]:
        """Begins a coroutine there; the future can be waited for, or cancelled, from here."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        """Ends the loop and its thread. Call it once."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
