"""Messages of many megabytes are read without a copy."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from penstock.protocol.common import Vectors
from penstock.transport.events import Opened, Received
from penstock.transport.session_client import LARGE, SessionClient
from tests.shared.transport.transport_wire import PATIENT, Wire, opened, pump

pytestmark = pytest.mark.timeout(240)

TOKENS, SIZE = 8192, 1024
"""Of vectors that take 32 MiB."""


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


def connected(context: zmq.Context, endpoint: str) -> tuple[Wire, SessionClient, bytes]:
    wire = Wire(context, endpoint)
    decoder = msgspec.msgpack.Decoder(list[Vectors | str])
    client = SessionClient(context, endpoint, decoder, lambda: ["hello"], PATIENT)
    pump(wire, client, opened)
    [session] = [event.session for event in wire.of(Opened)]
    return wire, client, session


def test_vectors_are_read_where_zeromq_has_them(context: zmq.Context, tmp_path: Path) -> None:
    wire, client, session = connected(context, f"ipc://{tmp_path}/s")
    data = bytes(range(256)) * (TOKENS * SIZE // 64)
    wire.server.send(session, [Vectors((TOKENS, SIZE), data)])
    tracemalloc.start()
    try:
        [event] = pump(None, client, bool)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    [vectors] = event.message
    assert vectors.is_sound()
    assert vectors.data == data
    assert most < len(data) // 16, "of the message, nothing was copied"
    assert msgspec.msgpack.encode(vectors) == msgspec.msgpack.encode(Vectors((TOKENS, SIZE), data))


@pytest.mark.parametrize("size", [0, 1, LARGE - 100, LARGE, 3 * LARGE])
def test_messages_of_all_sizes_arrive_with_their_further_parts(
    context: zmq.Context, tmp_path: Path, size: int
) -> None:
    wire, client, session = connected(context, f"ipc://{tmp_path}/s")
    frames = [b"", b"f" * size]
    wire.server.send(session, ["m" * size], frames)
    events = pump(None, client, bool)
    assert [(each.message, each.frames) for each in events] == [(["m" * size], frames)]
    assert all(type(frame) is bytes for each in events for frame in each.frames)
    assert isinstance(events[0], Received)
