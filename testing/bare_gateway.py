"""What no gateway can do without, and nothing else: a session's messages in, events out.

    python -m testing.bare_gateway ENDPOINT PORT

It submits each request that comes to a null engine core, as the request's seed and length say, and
answers each token with the same event, which was encoded before.  What it takes is the machine's
limit for one process with an event loop: ZeroMQ, decoding, and a write for each token.  Without
fields, text, errors and bounds; only for a client that sends what gateway_reader.py sends.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from typing import Any

import msgspec
import uvloop
import zmq

from penstock.config.settings import TransportSettings
from penstock.net.listener import raise_file_limit
from penstock.protocol import PROTOCOL_VERSIONS
from penstock.protocol.common import Stopping, TokenSampling
from penstock.protocol.from_frontend import Hello, OpenSequence, Submit
from penstock.protocol.to_frontend import Outputs, ToFrontend
from penstock.transport import heartbeat
from penstock.transport.events import Received
from penstock.transport.session_client import SessionClient

HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Fri, 20 Nov 2026 00:00:00 GMT\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"x-accel-buffering: no\r\nx-request-id: 0123456789abcdef0123456789abcdef\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
EVENT = (
    b'data: {"object":"chat.completion.chunk","id":"chatcmpl-0123456789abcdef0123456789abcdef",'
    b'"created":1790000000,"model":"null","choices":[{"index":0,"delta":{"content":" then"},'
    b'"logprobs":null,"finish_reason":null}],"system_fingerprint":"fp_0123456789ab"}\n\n'
)
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
LAST = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
READY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Body(msgspec.Struct):
    """What the null engine core cares about in a request's body."""

    max_tokens: int
    seed: int


class BareGateway:
    """A session with an engine core, and the descriptors of connections by request."""

    def __init__(self, endpoint: str) -> None:
        self._session: SessionClient[Any] = SessionClient(
            zmq.Context(),
            endpoint,
            msgspec.msgpack.Decoder(ToFrontend),
            lambda: Hello(list(PROTOCOL_VERSIONS), "bare", os.getpid()),
            TransportSettings(),
        )
        self._numbers = itertools.count(1)
        self._descriptors: dict[int, int] = {}

    @property
    def ready(self) -> bool:
        return self._session.opened

    async def run(self) -> None:
        """Runs for ever."""
        loop = asyncio.get_running_loop()
        self._pump()
        if self._session.socket is not None:
            loop.add_reader(int(self._session.socket.getsockopt(zmq.FD)), self._pump)

        def wake() -> None:
            loop.call_soon_threadsafe(self._pump)

        heartbeat.PROCESS.join(self._session, wake)
        while True:
            await asyncio.sleep(max(0.005, self._session.wait_hint(time.monotonic())))
            self._pump()

    def submit(self, body: Body, descriptor: int) -> None:
        number = next(self._numbers)
        self._descriptors[number] = descriptor
        sampling, stopping = TokenSampling(body.seed), Stopping(max_tokens=body.max_tokens)
        sequences = [OpenSequence(0, [])]
        self._session.send(Submit(number, str(number), [1], sequences, sampling, stopping))
        asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        for event in self._session.take(time.monotonic()):
            if isinstance(event, Received) and isinstance(event.message, Outputs):
                self._write(event.message)

    def _write(self, message: Outputs) -> None:
        descriptors = self._descriptors
        for output in message.outputs:
            os.write(descriptors[output.request], CHUNK)
            if output.finish is not None:
                os.write(descriptors.pop(output.request), LAST)


class Connection(asyncio.Protocol):
    """One connection with one request, which comes whole."""

    def __init__(self, gateway: BareGateway) -> None:
        self._gateway = gateway

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"POST"):
            descriptor = self._transport.get_extra_info("socket").fileno()
            os.write(descriptor, HEAD)
            body = msgspec.json.decode(data[data.index(b"\r\n\r\n") + 4 :], type=Body)
            self._gateway.submit(body, descriptor)
        else:
            if self._gateway.ready:
                self._transport.write(READY)
            self._transport.close()


async def serve(endpoint: str, port: int) -> None:
    gateway = BareGateway(endpoint)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(gateway), "127.0.0.1", port, backlog=4096)
    async with server:
        await gateway.run()


if __name__ == "__main__":
    raise_file_limit()
    uvloop.run(serve(sys.argv[1], int(sys.argv[2])))
