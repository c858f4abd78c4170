"""What preparers ask of their gateway."""

from __future__ import annotations

import asyncio
import socket

import httpx
import pytest

from penstock.config.settings import GatewayConfig
from penstock.process.isolated import receive_exactly
from penstock.process.isolated_child import HEADER
from penstock_gateway.preparing.answers import ANSWERS, Home
from penstock_gateway.preparing.channel import Channel
from penstock_gateway.preparing.wire import HomeAnswer, HomeQuestion, encode, from_preparer
from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.live_gateway import LiveGateway

pytestmark = pytest.mark.timeout(60)


class Gateway:
    """The other end of a channel's socket."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end

    async def asked(self) -> HomeQuestion:
        (size,) = HEADER.unpack(await receive_exactly(self._end, HEADER.size))
        told = from_preparer.decode(await receive_exactly(self._end, size))
        assert isinstance(told, HomeQuestion)
        return told

    async def answer(self, question: HomeQuestion, payload: bytes) -> None:
        data = encode(HomeAnswer(question.number, payload))
        await asyncio.get_running_loop().sock_sendall(self._end, HEADER.pack(len(data)) + data)


async def test_an_answer_that_nobody_waits_for_is_skipped() -> None:
    """One of several questions failed, which ended the others."""
    ours, theirs = socket.socketpair()
    gateway, channel = Gateway(ours), Channel(theirs)
    channel.begin()
    given_up = asyncio.create_task(channel.ask("pool", b"1"))
    first = await gateway.asked()
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    waits = asyncio.create_task(channel.ask("pool", b"2"))
    second = await gateway.asked()
    await gateway.answer(first, b"too late")
    await gateway.answer(second, b"in time")
    try:
        async with asyncio.timeout(20):
            assert await waits == b"in time"
    finally:
        # Else it ends this process with its socket.
        assert channel._reading is not None
        channel._reading.cancel()
        await asyncio.wait([channel._reading])


def test_a_gateway_without_memory_is_not_the_bodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    async def has_none(home: Home, payload: bytes) -> bytes:
        raise MemoryError

    monkeypatch.setitem(ANSWERS, "use", has_none)
    with LiveGateway(FakeEngineClient(), GatewayConfig()) as live:
        body = {"prompt": "word " * 4000}
        reply = httpx.post(f"{live.url}/tokenize", json=body, timeout=50)
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "out_of_memory"
    assert "retry-after" in reply.headers
