"""What is written promptly is with the client in the same turn, in order, and bounded as before."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
import uvloop

from penstock_gateway.http.prompt_write import TextWrite, Write, prompt_write

pytestmark = pytest.mark.timeout(120)

Scenario = Callable[["Served", Write, socket.socket], Awaitable[None]]


class Served(asyncio.Protocol):
    """The server's end of a connection."""

    transport: Any = None
    full = False

    def __init__(self) -> None:
        self.made = asyncio.Event()
        self.lost = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.made.set()

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


def run(scenario: Scenario, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """With both ends of a connection; the client's is a blocking socket."""

    async def connected() -> None:
        served = Served()
        server = await asyncio.get_running_loop().create_server(lambda: served, "127.0.0.1", 0)
        async with server:
            with socket.create_connection(server.sockets[0].getsockname(), 60) as client:
                await served.made.wait()
                await scenario(served, prompt_write(served.transport).write, client)
                served.transport.abort()
                await served.lost.wait()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(connected())


@pytest.mark.parametrize("loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_it_leaves_within_the_turn(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def scenario(served: Served, write: Write, client: socket.socket) -> None:
        write(b"now")
        assert client.recv(100) == b"now"  # Nothing else has had a turn.

    run(scenario, loop)


@pytest.mark.parametrize("loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_it_keeps_the_order(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def scenario(served: Served, write: Write, client: socket.socket) -> None:
        got = b""
        for round_ in range(3):
            served.transport.write(b"a%d" % round_)
            write(b"b%d" % round_)
            served.transport.write(b"c%d" % round_)
            write(b"d%d" % round_)
            while len(got) < 8 * (round_ + 1):
                got += await asyncio.to_thread(client.recv, 100)
        assert got == b"a0b0c0d0a1b1c1d1a2b2c2d2"

    run(scenario, loop)


def test_a_client_that_does_not_read_fills_the_connection_and_loses_nothing() -> None:
    async def scenario(served: Served, write: Write, client: socket.socket) -> None:
        sent = bytearray()
        while not served.full:
            piece = bytes([len(sent) % 251]) * 100_003
            write(piece)
            sent += piece
        write(b"the end")
        sent += b"the end"
        got = bytearray()
        while len(got) < len(sent):
            got += await asyncio.to_thread(client.recv, 1 << 20)
        assert got == sent
        while served.full:
            await asyncio.sleep(0.001)
        write(b"again")
        assert client.recv(100) == b"again"

    run(scenario, uvloop.new_event_loop)


def test_writing_to_a_closed_connection_harms_nobody_elses() -> None:
    async def scenario(served: Served, write: Write, client: socket.socket) -> None:
        served.transport.close()
        write(b"late")
        await served.lost.wait()
        assert await asyncio.to_thread(client.recv, 100) == b""
        one, other = socket.socketpair()  # One of them may have got the descriptor that was free.
        with one, other:
            with pytest.raises(RuntimeError, match="closed"):  # As the transport's own write.
                write(b"later")
            for end in (one, other):
                end.setblocking(False)
                with pytest.raises(BlockingIOError):
                    end.recv(100)

    run(scenario, uvloop.new_event_loop)


def test_a_client_that_has_reset_is_noticed_by_the_transport() -> None:
    async def scenario(served: Served, write: Write, client: socket.socket) -> None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
        client.close()
        while not served.lost.is_set():
            write(b"x")
            await asyncio.sleep(0)

    run(scenario, uvloop.new_event_loop)


BEFORE, AFTER = b'data: {"said":', b"}\n\n"


def texts_of(served: Served) -> TextWrite:
    writer = prompt_write(served.transport).text(BEFORE, AFTER)
    assert writer is not None
    return writer


@pytest.mark.parametrize("text", ["then", '"\\\n\x00', "Ü👋</\u2028", "x" * 70_000])
def test_a_text_is_written_as_the_chunk_of_its_event(text: str) -> None:
    async def scenario(served: Served, write: Write, client: socket.socket) -> None:
        writer = texts_of(served)
        assert writer.take(text, 3, 1.5)
        assert not writer.take("more", 1, 2.5), "one at a time"
        event = BEFORE + msgspec.json.encode(text) + AFTER
        chunk = b"%x\r\n%b\r\n" % (len(event), event)
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(1)
        client.setblocking(True)
        writer.put()
        got = b""
        while len(got) < len(chunk):
            got += await asyncio.to_thread(client.recv, 1 << 20)
        assert got == chunk
        assert (writer.tokens, writer.last) == (3, 1.5)
        assert writer.take("", 1, 2.5)
        assert (writer.tokens, writer.last) == (4, 2.5)

    run(scenario, uvloop.new_event_loop)


def test_no_text_is_taken_where_some_waits_or_the_connection_closes() -> None:
    async def scenario(served: Served, write: Write, client: socket.socket) -> None:
        writer, sent = texts_of(served), 0
        while writer.take("y" * 100_000, 1, 1.0):
            writer.put()
            sent += 1
        assert not served.transport.is_closing()
        assert writer.tokens == sent
        write(b"the end")
        got = b""
        while not got.endswith(b"the end"):
            got += await asyncio.to_thread(client.recv, 1 << 20)
        assert got.count(BEFORE) == sent
        assert got.count(b"y") == sent * 100_000
        while served.transport.get_write_buffer_size():
            await asyncio.sleep(0)
        assert writer.take("z", 1, 1.0)
        writer.put()
        served.transport.close()
        assert not writer.take("late", 1, 1.0)

    run(scenario, uvloop.new_event_loop)


def test_a_transport_that_writes_itself_has_no_way_past_it() -> None:
    async def scenario(served: Served, write: Write, client: socket.socket) -> None:
        assert prompt_write(served.transport).text(BEFORE, AFTER) is None

    run(scenario, asyncio.new_event_loop)
