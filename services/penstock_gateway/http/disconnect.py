"""Doing work for a client for as long as it is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from penstock_gateway.http.errors import ClientGone, as_http_error
from penstock_gateway.http.events import EventStream

Result = TypeVar("Result")
Tick = Callable[[], Awaitable[float | None]]
"""Called between looks at the client. Returns the seconds until it wants to be called again;
None: never."""


async def while_connected(
    work: Coroutine[Any, Any, Result], receive: Receive, tick: Tick | None = None
) -> Result:
    """Runs `work`, and cancels it at once when the client disconnects.

    Returns what `work` returns and raises what it, or `tick`, raises; ClientGone after a
    disconnect.  The request's body must have been read.
    """
    worker = asyncio.create_task(work)
    watcher = asyncio.create_task(_watch(receive, tick))
    try:
        await asyncio.wait((worker, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not worker.done():
            watcher.result()  # Raises: a watcher has no other end.
        return worker.result()
    finally:
        for task in (worker, watcher):
            task.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)


async def stream_while_connected(
    work: Coroutine[Any, Any, None], receive: Receive, events: EventStream
) -> None:
    """Runs `work`, which writes `events`, in the same way, and keeps the stream alive. What fails
    once the stream has begun ends it with an error event.

    Raises as `while_connected` does.
    """
    try:
        await while_connected(work, receive, events.tick)
    except ClientGone:
        raise
    except (Exception, asyncio.CancelledError) as error:
        if events.started:
            await events.fail(as_http_error(error))
        raise


async def _watch(receive: Receive, tick: Tick | None) -> None:
    while True:
        pause = None if tick is None else await tick()
        try:
            async with asyncio.timeout(pause):
                message = await receive()
        except TimeoutError:
            continue
        if message["type"] == "http.disconnect":
            raise ClientGone("disconnected")
