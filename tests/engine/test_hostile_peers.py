"""What dials the engine core and wishes it no good, beside a front end and a worker that notice
nothing of it."""

from __future__ import annotations

import os
import resource
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from deploy.local import free_port
from penstock.protocol.from_frontend import Hello
from penstock.protocol.from_worker import WorkerHello
from penstock.transport.wire import NO_BOOT, FrameKind, pack_header
from testing.serving import PATIENCE, wait_until
from tests.engine.test_process import PATIENT, VERSIONS, Engine, run_one, write_prepared

pytestmark = pytest.mark.timeout(300)

MOST_GROWTH = 200 << 20
"""Bytes: a message of the largest kind, decoded, and what is queued."""
FIRST = pack_header(NO_BOOT, FrameKind.DATA, 0)
encode = msgspec.msgpack.encode
HELLOS = [
    encode(Hello(VERSIONS, "stranger", 1)),
    encode(WorkerHello(VERSIONS, 0, 1, "", "another life")),
]
ZMTP = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    running = Engine(write_prepared(tmp_path), PATIENT)
    yield running
    running.close()


def dial(context: zmq.Context[Any], endpoint: str, identity: bytes = b"") -> zmq.Socket[bytes]:
    dealer: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.setsockopt(zmq.ROUTING_ID, identity or b"\x01" + secrets.token_bytes(15))
    dealer.connect(endpoint)
    return dealer


def says(
    context: zmq.Context[Any], endpoint: str, *messages: list[bytes], identity: bytes = b""
) -> None:
    dealer = dial(context, endpoint, identity)
    for message in messages:
        dealer.send_multipart(message)
    dealer.poll(200)
    dealer.close()


def raw(endpoint: str) -> socket.socket:
    if endpoint.startswith("tcp"):
        host, port = endpoint.removeprefix("tcp://").split(":")
        return socket.create_connection((host, int(port)), PATIENCE)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(endpoint.removeprefix("ipc://"))
    return connection


def garbage_on_the_socket(context: zmq.Context[Any], endpoint: str) -> None:
    for data in (
        os.urandom(65_536),
        b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        b"\xff" + bytes(7) + b"\x01\x7f" + os.urandom(200),
        ZMTP + b"\x02" + b"\xff" * 8 + os.urandom(100),
        ZMTP + b"\x04\xff\x05READY" + os.urandom(300),
        ZMTP[:20],
    ):
        for _ in range(20):
            connection = raw(endpoint)
            try:
                connection.sendall(data)
            except OSError:
                pass  # It has hung up, which is right.
            connection.close()


def frames_that_no_peer_sends(context: zmq.Context[Any], endpoint: str) -> None:
    hello = HELLOS[endpoint.endswith("workers")]
    payloads = [
        b"", b"x", os.urandom(1000), b"\x91" * 1_000_000, b"\x81\xa4type" * 100_000,
        b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff", b"\x82\xa4type\xa5hello\xa8versions\xdd\xff\xff\xff\xff",
        encode({"type": "hello", "versions": [2**63], "name": "x" * 10_000_000, "pid": -(2**63)}),
        encode({"type": "hello", "versions": [1] * 1_000_000, "name": "\n\x1b[31m", "pid": 0}),
    ]  # fmt: skip
    for message in (
        [b""],
        [b"short"],
        [FIRST],
        [FIRST, *[b""] * 100],
        [struct.pack("<8sBQ", NO_BOOT, 7, 0)],
        [pack_header(NO_BOOT, FrameKind.DATA, 2**63), hello],
        [pack_header(NO_BOOT, FrameKind.BEAT, 0)],
        [pack_header(NO_BOOT, FrameKind.BYE, 0), b"\xff" * 100_000],
        [FIRST, hello, bytes(60_000_000)],
        [FIRST, hello, bytes(70_000_000)],
        *([FIRST, payload] for payload in payloads),
    ):
        says(context, endpoint, message)
    for identity in (b"a", b"x" * 255):
        says(context, endpoint, [FIRST, hello], identity=identity)
    for number in (0, 2, 2**64 - 1):  # sound at first, then numbers that do not follow
        says(
            context, endpoint, [FIRST, hello], [pack_header(NO_BOOT, FrameKind.DATA, number), b"x"]
        )


def a_flood_that_reads_nothing(context: zmq.Context[Any], endpoint: str) -> None:
    dealer = dial(context, endpoint)
    dealer.setsockopt(zmq.RCVHWM, 1)
    header = pack_header(NO_BOOT, FrameKind.DATA, 5)
    for _ in range(50_000):
        dealer.send_multipart([header, b"nonsense"])
    dealer.close()


def more_sessions_than_there_may_be(context: zmq.Context[Any], endpoint: str) -> None:
    hello = HELLOS[endpoint.endswith("workers")]
    dealers = [dial(context, endpoint) for _ in range(1100)]
    for dealer in dealers:
        dealer.send_multipart([FIRST, hello])
    answered = sum(dealer.poll(5000) > 0 for dealer in dealers)
    for dealer in dealers:
        dealer.close()
    assert answered == len(dealers)


def somebody_elses_identity(context: zmq.Context[Any], endpoint: str) -> None:
    """Who has a session is not shut out by who takes its name, nor by its frames said again."""
    first = [FIRST, HELLOS[0]]
    holder = dial(context, endpoint, b"\x01" * 16)
    holder.send_multipart(first)
    if endpoint.endswith("frontends"):
        assert holder.poll(60_000)
        boot = holder.recv()[:8]
        says(context, endpoint, first, identity=b"\x01" * 16)
        for boot_said in (boot, b"another1"):
            says(context, endpoint, [pack_header(boot_said, FrameKind.DATA, 1), encode({})])
        holder.send_multipart([pack_header(boot, FrameKind.BEAT, 1)])
        for _ in range(10):
            assert holder.poll(60_000)
            assert holder.recv()[8] != FrameKind.BYE
    holder.close()


ATTACKS: list[Callable[[zmq.Context[Any], str], None]] = [
    garbage_on_the_socket,
    frames_that_no_peer_sends,
    a_flood_that_reads_nothing,
    more_sessions_than_there_may_be,
    somebody_elses_identity,
]


def read_errors(engine: Engine) -> list[str]:
    """Its log, line by line, as it comes: an unread pipe would stop it."""
    lines: list[str] = []
    assert engine.process is not None
    assert engine.process.stderr is not None
    threading.Thread(target=lines.extend, args=(engine.process.stderr,), daemon=True).start()
    return lines


def resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_front_end_and_worker_go_on(engine: Engine) -> None:
    process = engine.start()
    read_errors(engine)
    engine.until(engine.ready)
    run_one(engine, 1)
    engine.front.ended.clear()  # attempts to dial before it listened
    engine.work.ended.clear()
    before, failed, over = resident(process.pid), [], threading.Event()

    def attack() -> None:
        with zmq.Context() as context:
            context.set(zmq.MAX_SOCKETS, 4096)
            for each in ATTACKS:
                for endpoint in engine.endpoints:
                    try:
                        each(context, endpoint)
                    except Exception as error:
                        failed.append((each.__name__, endpoint, repr(error)))
        over.set()

    thread = threading.Thread(target=attack)
    thread.start()
    number = 1
    while not over.is_set():
        number += 1
        run_one(engine, number)
    thread.join()
    run_one(engine, number + 1)
    assert not failed
    assert engine.front.ended == engine.work.ended == []
    assert process.poll() is None
    assert resident(process.pid) - before < MOST_GROWTH


@pytest.fixture
def tcp_engine(tmp_path: Path) -> Iterator[Engine]:
    endpoints = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    running = Engine(write_prepared(tmp_path), PATIENT, endpoints=endpoints)
    yield running
    running.close()


def test_connections_that_take_all_descriptors_are_said_once_and_end(tcp_engine: Engine) -> None:
    """Over TCP: the Unix sockets lie in a folder that only the same user can enter."""
    engine = tcp_engine
    process = engine.start()
    engine.until(engine.ready)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (100, 100))
    held = [raw(engine.endpoints[0]) for _ in range(120)]
    run_one(engine, 1)  # Open sessions go on.
    errors = read_errors(engine)
    wait_until(
        lambda: [line for line in errors if "nobody can connect" in line],
        message=lambda: "".join(errors),
    )
    # They say nothing, so that they are hung up on, and there is room again.
    with zmq.Context() as context:
        dealer = dial(context, engine.endpoints[0])
        dealer.send_multipart([FIRST, HELLOS[0]])
        assert dealer.poll(round(1000 * PATIENCE)), "who dials afterwards is shut out"
        dealer.close()
    run_one(engine, 2)
    for connection in held:
        connection.close()
    assert 1 <= sum("nobody can connect" in line for line in errors) <= 4, errors
