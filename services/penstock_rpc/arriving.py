"""The messages of a stream that a client may hold open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from penstock_gateway.service import Service

Message = TypeVar("Message")

LOOK_EVERY = 0.5
"""Seconds between looks at whether the server leaves."""


def _never() -> bool:
    return False


async def arriving(
    requests: AsyncIterator[Message],
    service: Service,
    *,
    idle: float,
    busy: Callable[[], bool] = _never,
) -> AsyncIterator[Message]:
    """A stream's messages until there are no more, or the server leaves: an open stream would hold
    that up.

    idle: seconds without a message, while it is not busy, after which TimeoutError is raised: a
    stream holds its place among all calls.
    """
    loop = asyncio.get_running_loop()
    since = loop.time()
    if service.draining:
        return
    source = aiter(requests)
    while True:
        coming = asyncio.ensure_future(anext(source))
        try:
            while not coming.done():
                await asyncio.wait((coming,), timeout=LOOK_EVERY)
                if coming.done():
                    break
                if service.draining:
                    return
                if busy():
                    since = loop.time()
                elif loop.time() - since > idle:
                    raise TimeoutError
            try:
                message = coming.result()
            except StopAsyncIteration:
                return
        finally:
            coming.cancel()
        yield message
        since = loop.time()
