"""A recording that the library turns into text, from its first window to its last."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from penstock.errors import RequestFailed
from penstock.transcription.transcript import Transcript


class RunningTranscript:
    """Its work in a task of its own, so that it can be ended between two windows too."""

    def __init__(self, work: Coroutine[Any, Any, Transcript]) -> None:
        self._task = asyncio.ensure_future(work)
        self._aborted = False

    def abort(self) -> None:
        """Ends it, and what runs of it in the engine. Idempotent."""
        self._aborted = True
        self._task.cancel()

    async def whole(self) -> Transcript:
        """Once the recording was heard to its end. Raises RequestFailed where `abort` came first,
        and what the work raises. Cancelling this ends the work."""
        try:
            return await self._task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._aborted and not (caller is not None and caller.cancelling()):
                raise RequestFailed("the request was aborted by its caller") from None
            raise
