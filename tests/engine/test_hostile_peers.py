"""What dials the engine core and wishes it no good, beside a front end and a worker that notice
nothing of it."""

from __future__ import annotations

import os
import resource
import secrets
import shutil
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from deploy.local import free_port
from penstock.protocol.from_frontend import Hello
from penstock.protocol.from_worker import WorkerHello
from penstock.transport.curve import ClientCurve
from penstock.transport.curve_keys import make_folders
from penstock.transport.wire import NO_BOOT, FrameKind, pack_header
from testing.serving import PATIENCE, wait_until
from tests.engine.engine_process import PATIENT, VERSIONS, Engine, write_prepared
from tests.engine.test_process import run_one

pytestmark = pytest.mark.timeout(300)

MOST_GROWTH = 200 << 20
"""Bytes: a message of the largest kind, decoded, and what is queued."""
FIRST = pack_header(NO_BOOT, FrameKind.DATA, 0)
encode = msgspec.msgpack.encode
HELLOS = {
    "frontends": encode(Hello(VERSIONS, "stranger", 1)),
    "workers": encode(WorkerHello(VERSIONS, 0, 1, "", "another life")),
}
ZMTP = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
CURVE = ZMTP.replace(b"NULL\0", b"CURVE")


@dataclass(frozen=True)
class Target:
    """Where somebody dials. peers: whose socket it is.  keys: a folder with keys to dial with."""

    context: zmq.Context[Any]
    endpoint: str
    peers: str
    keys: Path | None = None

    def dial(self, identity: bytes = b"") -> zmq.Socket[bytes]:
        dealer: zmq.Socket[bytes] = self.context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.SNDTIMEO, 30_000)
        dealer.setsockopt(zmq.ROUTING_ID, identity or b"\x01" + secrets.token_bytes(15))
        if self.keys is not None:
            ClientCurve(self.keys).secure(dealer)
        dealer.connect(self.endpoint)
        return dealer

    def says(self, *messages: list[bytes], identity: bytes = b"") -> None:
        dealer = self.dial(identity)
        for message in messages:
            say(dealer, message)
        dealer.poll(200)
        dealer.close()


def say(dealer: zmq.Socket[bytes], message: list[bytes]) -> None:
    """Sends to whom may already have refused the caller: a dealer that was turned away for want
    of keys has no connection, and nobody to send to, for good."""
    try:
        dealer.send_multipart(message, zmq.DONTWAIT)
    except zmq.Again:
        pass


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    running = Engine(write_prepared(tmp_path), PATIENT)
    yield running
    running.close()


def raw(endpoint: str) -> socket.socket:
    if endpoint.startswith("tcp"):
        host, port = endpoint.removeprefix("tcp://").split(":")
        return socket.create_connection((host, int(port)), PATIENCE)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(endpoint.removeprefix("ipc://"))
    return connection


def garbage_on_the_socket(target: Target) -> None:
    for data in (
        os.urandom(65_536),
        b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        b"\xff" + bytes(7) + b"\x01\x7f" + os.urandom(200),
        ZMTP + b"\x02" + b"\xff" * 8 + os.urandom(100),
        ZMTP + b"\x04\xff\x05READY" + os.urandom(300),
        ZMTP[:20],
        CURVE + b"\x04\xc8\x05HELLO" + os.urandom(194),
        CURVE + b"\x06" + struct.pack(">Q", 2**62) + b"\x05HELLO" + os.urandom(65_536),
        CURVE + b"\x04\xff\x08INITIATE" + os.urandom(300),
    ):
        for _ in range(20):
            connection = raw(target.endpoint)
            try:
                connection.sendall(data)
            except OSError:
                pass  # It has hung up, which is right.
            connection.close()


def frames_that_no_peer_sends(target: Target) -> None:
    hello = HELLOS[target.peers]
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
        target.says(message)
    for identity in (b"a", b"x" * 255):
        target.says([FIRST, hello], identity=identity)
    for number in (0, 2, 2**64 - 1):  # sound at first, then numbers that do not follow
        target.says([FIRST, hello], [pack_header(NO_BOOT, FrameKind.DATA, number), b"x"])


def a_flood_that_reads_nothing(target: Target) -> None:
    dealer = target.dial()
    dealer.setsockopt(zmq.RCVHWM, 1)
    header = pack_header(NO_BOOT, FrameKind.DATA, 5)
    for _ in range(50_000):
        dealer.send_multipart([header, b"nonsense"])
    dealer.close()


def more_sessions_than_there_may_be(target: Target) -> None:
    dealers = [target.dial() for _ in range(1100)]
    for dealer in dealers:
        dealer.send_multipart([FIRST, HELLOS[target.peers]])
    patient = time.monotonic() + PATIENCE  # A handshake that takes too long begins anew.
    answered = sum(
        dealer.poll(round(1000 * max(0.0, patient - time.monotonic()))) > 0 for dealer in dealers
    )
    for dealer in dealers:
        dealer.close()
    assert answered == len(dealers)


def nobody_gets_in(target: Target) -> None:
    dealers = [target.dial() for _ in range(100)]
    for dealer in dealers:
        say(dealer, [FIRST, HELLOS[target.peers]])
    answered = sum(dealer.poll(50) > 0 for dealer in dealers)
    for dealer in dealers:
        dealer.close()
    assert not answered


def somebody_elses_identity(target: Target) -> None:
    """Who has a session is not shut out by who takes its name, nor by its frames said again."""
    first = [FIRST, HELLOS["frontends"]]
    holder = target.dial(b"\x01" * 16)
    holder.send_multipart(first)
    if target.peers == "frontends":
        assert holder.poll(60_000)
        boot = holder.recv()[:8]
        target.says(first, identity=b"\x01" * 16)
        for boot_said in (boot, b"another1"):
            target.says([pack_header(boot_said, FrameKind.DATA, 1), encode({})])
        holder.send_multipart([pack_header(boot, FrameKind.BEAT, 1)])
        for _ in range(10):
            assert holder.poll(60_000)
            assert holder.recv()[8] != FrameKind.BYE
    holder.close()


Attack = Callable[[Target], None]
BY_STRANGERS: list[Attack] = [garbage_on_the_socket, frames_that_no_peer_sends, nobody_gets_in]
"""Where there are keys."""
ATTACKS: list[Attack] = [
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


def go_on(engine: Engine, attacks: list[Attack], *keys: Path) -> None:
    """What both notice of attacks on either socket. keys: a folder for each socket's, to dial
    with."""
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
            own = keys or (None, None)
            targets = [
                Target(context, *each) for each in zip(engine.endpoints, HELLOS, own, strict=True)
            ]
            for each in attacks:
                for target in targets:
                    try:
                        each(target)
                    except Exception as error:
                        failed.append((each.__name__, target.endpoint, repr(error)))
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


def test_front_end_and_worker_go_on(engine: Engine) -> None:
    go_on(engine, ATTACKS)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    for name in ("keys", "others"):
        make_folders(tmp_path / name, ["gateway"], ["worker"])
    return tmp_path / "keys"


@pytest.fixture
def locked_engine(tmp_path: Path, keys: Path) -> Iterator[Engine]:
    (model := tmp_path / "model").mkdir()
    endpoints = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    running = Engine(write_prepared(model), PATIENT, endpoints=endpoints, keys=keys)
    yield running
    running.close()


@pytest.mark.parametrize(
    "own", ["none", pytest.param("a stranger's", marks=pytest.mark.long), "stolen"]
)
def test_with_keys(locked_engine: Engine, keys: Path, tmp_path: Path, own: str) -> None:
    """Who has none, or one that isn't allowed, doesn't get in; who has stolen a gateway's and
    a worker's does, and disturbs nobody all the same."""
    others = tmp_path / "others"
    for role in ("gateway", "worker"):
        shutil.copy(keys / role / "engine.key", others / role / "engine.key")
    folder = {"none": None, "a stranger's": others, "stolen": keys}[own]
    with_those = () if folder is None else (folder / "gateway", folder / "worker")
    go_on(locked_engine, ATTACKS if own == "stolen" else BY_STRANGERS, *with_those)


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
        dealer = Target(context, engine.endpoints[0], "frontends").dial()
        dealer.send_multipart([FIRST, HELLOS["frontends"]])
        assert dealer.poll(round(1000 * PATIENCE)), "who dials afterwards is shut out"
        dealer.close()
    run_one(engine, 2)
    for connection in held:
        connection.close()
    assert 1 <= sum("nobody can connect" in line for line in errors) <= 4, errors
