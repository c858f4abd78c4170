"""What is left of work that failed."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest

from penstock.errors import EngineLost, EngineUnavailable, ModelFailed, RequestFailed
from penstock_gateway.http.errors import ClientGone
from penstock_gateway.http.events import EventStream, Room, stream_while_connected, while_connected


class Body:
    """Stands for what a request brought."""


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def leaves() -> dict[str, str]:
    return {"type": "http.disconnect"}


async def stays() -> dict[str, str]:
    await asyncio.Event().wait()
    return {}


@pytest.mark.parametrize("is_left", [False, True])
async def test_a_request_that_fails_is_forgotten_at_once(uncollected: None, is_left: bool) -> None:
    """The garbage collector looks at everything every half a minute, and bodies are large."""

    async def work(body: Body) -> None:
        if is_left:
            await asyncio.Event().wait()
        raise ValueError(body)

    body = Body()
    kept = weakref.ref(body)
    try:
        await while_connected(work(body), leaves if is_left else stays)  # type: ignore[arg-type]
    except (ValueError, ClientGone):
        pass
    del body
    await asyncio.sleep(0)
    assert kept() is None


@pytest.mark.parametrize("goes_on", [False, True], ids=["plain", "resumable"])
@pytest.mark.parametrize(
    "error",
    [
        EngineLost("none reconnected"),
        EngineUnavailable("the request was aborted by the server"),
        ModelFailed("its weights are broken", retry_after=7.0),
        RequestFailed("it was in two deaths"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_stream_that_goes_on_elsewhere_has_no_error_where_engine_cores_have_left(
    goes_on: bool, error: Exception
) -> None:
    """Another cell has engine cores; but what may be a death's cause, what an operator aborts, and
    what a model that can't be started was asked for ends for good, and says why."""
    sent, closed = bytearray(), list[bool]()

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.extend(message.get("body", b""))

    room = Room(full=False, close=lambda: closed.append(True))
    events = EventStream(send, keepalive=0, room=room)
    events.breaks_off = goes_on

    async def work() -> None:
        await events.write(b"data: {}\n\n")
        raise error

    with pytest.raises(type(error)):
        await stream_while_connected(work(), stays, events)
    breaks_off = goes_on and isinstance(error, EngineLost)
    assert (str(error).encode() in sent, bool(closed)) == (not breaks_off, breaks_off)
