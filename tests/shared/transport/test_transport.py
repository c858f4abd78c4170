"""Sessions: numbering, refusal of what isn't sound, and sides that die, freeze or flood."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import zmq

from penstock.transport import session_server as module
from penstock.transport.events import Ended, Event, Opened, Received
from penstock.transport.session_client import LAST_RETRY
from penstock.transport.session_server import DRAIN_LIMIT, FAREWELL, SessionServer
from penstock.transport.wire import (
    MAX_FRAMES,
    NO_BOOT,
    BadFrame,
    FrameKind,
    Numbering,
    join,
    pack_header,
    split,
)
from testing.processes import freeze
from tests.shared.transport.transport_wire import (
    BOOT,
    FREEZING,
    PATIENT,
    Wire,
    ended,
    make_link,
    opened,
    pump,
    start_peer,
)

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/s"


def test_hello_is_answered_and_messages_arrive_in_order(context, endpoint):
    wire, client = Wire(context, endpoint), make_link(context, endpoint)
    events = pump(wire, client, opened)
    assert events[0].message == ["welcome"]
    assert client.boot == BOOT
    for number in range(50):
        assert client.send(["n", number], [bytes([number])])
    pump(wire, client, lambda _: len(wire.of(Received)) == 50)
    assert [e.message for e in wire.of(Received)] == [["n", n] for n in range(50)]
    assert [e.frames for e in wire.of(Received)] == [[bytes([n])] for n in range(50)]


def test_a_link_may_dial_before_the_hub_exists(context, endpoint):
    client = make_link(context, endpoint)
    pump(None, client, lambda _: client.socket is not None)
    time.sleep(0.1)
    pump(Wire(context, endpoint), client, opened)


def test_a_link_without_a_file_descriptor_dials_later(context, endpoint):
    wire, client = Wire(context, endpoint), make_link(context, endpoint)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, before[1]))
    try:
        assert client.poll(wire.clock()) == []
        assert client.last_reason == "the engine core can't be dialled: Too many open files"
        assert 0 < client.wait_hint(wire.clock()) <= LAST_RETRY
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    wire.clock.ahead += LAST_RETRY
    pump(wire, client, opened)


def test_beats_keep_an_idle_session_alive(context, endpoint):
    settings = msgspec.structs.replace(PATIENT, beat_interval=PATIENT.peer_timeout / 3)
    wire, client = (
        Wire(context, endpoint, settings=settings),
        make_link(context, endpoint, settings),
    )
    pump(wire, client, opened)
    [session] = wire.server.sessions
    for _ in range(10):
        wire.clock.ahead += settings.beat_interval
        since = wire.clock()

        def both_heard(events: list[Event], since: float = since) -> bool:
            assert not ended(events)
            assert not wire.of(Ended)
            heard = client._numbering.last_heard, wire.server._numberings[session].last_heard
            return min(heard) >= since

        pump(wire, client, both_heard)


def test_a_silent_hub_ends_the_session_and_the_next_has_another_identity(context, endpoint):
    wire, client = Wire(context, endpoint), make_link(context, endpoint)
    pump(wire, client, opened)
    first = wire.server.sessions[0]
    wire.clock.ahead += PATIENT.peer_timeout * 1.5
    events = client.poll(wire.clock())
    assert isinstance(events[0], Ended)
    assert "silent" in events[0].reason
    pump(wire, client, opened)
    pump(wire, client, lambda _: len(wire.of(Ended)) >= 1)
    assert wire.of(Ended)[0].session == first
    assert first not in wire.server.sessions


def test_frames_that_waited_through_a_freeze_are_never_acted_on(context, endpoint):
    """The server sleeps past the timeout with messages in its queue: the session ends first."""
    wire, client = Wire(context, endpoint), make_link(context, endpoint)
    pump(wire, client, opened)
    client.send(["late"])
    assert wire.server.socket.poll(30_000)
    wire.clock.ahead += PATIENT.peer_timeout * 1.5
    pump(wire, None, lambda _: bool(wire.of(Ended)))
    for _ in range(20):
        wire.poll()
    assert not wire.of(Received)


def raw_dealer(context: zmq.Context, endpoint: str) -> zmq.Socket:
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.ROUTING_ID, b"\x01" + os.urandom(15))
    dealer.connect(endpoint)
    dealer.send_multipart(
        [pack_header(NO_BOOT, FrameKind.DATA, 0), msgspec.msgpack.encode(["hello"])]
    )
    return dealer


@pytest.mark.parametrize(
    "parts",
    [
        [pack_header(BOOT, FrameKind.DATA, 2), msgspec.msgpack.encode(["a gap"])],
        [pack_header(BOOT, FrameKind.DATA, 1), b"\xc1 not msgpack"],
        [pack_header(BOOT, FrameKind.DATA, 1), msgspec.msgpack.encode({"of": "another type"})],
        [pack_header(b"boot-two", FrameKind.DATA, 1), msgspec.msgpack.encode(["other boot"])],
        [pack_header(NO_BOOT, FrameKind.DATA, 1), msgspec.msgpack.encode(["no boot"])],
        [pack_header(BOOT, FrameKind.DATA, 1)],
        [b"short", b"x"],
        [b"x" * 17, b"x"],
        [b"x"] * 200,
    ],
)
def test_an_unsound_frame_ends_the_session_on_both_sides(context, endpoint, parts):
    wire = Wire(context, endpoint)
    dealer = raw_dealer(context, endpoint)
    pump(wire, None, lambda _: bool(wire.of(Opened)))
    dealer.send_multipart(parts)
    pump(wire, None, lambda _: bool(wire.of(Ended)))
    assert not wire.of(Received)
    assert wire.server.sessions == []
    kinds = []
    while dealer.poll(30_000):
        kinds.append(dealer.recv_multipart()[0][8])
        if kinds[-1] == FrameKind.BYE:
            break
    assert kinds[-1] == FrameKind.BYE


@pytest.mark.parametrize("kind", [FrameKind.DATA, FrameKind.BEAT])
def test_a_stranger_is_told_that_it_has_no_session(context, endpoint, kind):
    wire = Wire(context, endpoint)
    dealer = context.socket(zmq.DEALER)
    dealer.connect(endpoint)
    dealer.send_multipart([pack_header(BOOT, kind, 7), b"\x90"])
    pump(wire, None, lambda _: dealer.poll(0) != 0)
    assert dealer.recv_multipart()[0][8] == FrameKind.BYE
    assert wire.events == []


def test_a_new_engine_boot_ends_the_old_session(context, endpoint):
    engine = zmq.Context()
    wire, client = Wire(engine, endpoint), make_link(context, endpoint)
    pump(wire, client, opened)
    wire.server.socket.close(linger=0)  # As if killed: no goodbye.
    engine.term()  # Its thread takes the endpoint's file away: that of its successor, if later.
    successor = Wire(context, endpoint, boot=b"boot-two")
    events = pump(successor, client, opened)
    assert isinstance(events[0], Ended)
    assert client.boot == b"boot-two"
    assert not successor.of(Received)


def test_closing_says_goodbye_at_once(context, endpoint):
    wire, client = Wire(context, endpoint), make_link(context, endpoint)
    pump(wire, client, opened)
    client.close()
    pump(wire, None, lambda _: bool(wire.of(Ended)))
    assert "silent" not in wire.of(Ended)[0].reason
    other = make_link(context, endpoint)
    pump(wire, other, opened)
    wire.server.close()
    events = pump(None, other, ended)
    # The goodbye, or the broken connection where that came first; not the long silence.
    assert "silent" not in events[0].reason


def test_what_was_said_before_the_goodbye_arrives_at_a_slow_reader(context, endpoint, monkeypatch):
    monkeypatch.setattr(module, "FAREWELL", 30.0)
    wire, client = Wire(context, endpoint), make_link(context, endpoint)
    pump(wire, client, opened)
    session = wire.server.sessions[0]
    for number in range(50):
        wire.server.send(session, [number])
    closing = threading.Thread(target=wire.server.close)
    closing.start()
    time.sleep(0.4)  # busy with something else
    events = pump(None, client, ended)
    closing.join()
    assert [event.message for event in events if isinstance(event, Received)] == [
        [number] for number in range(50)
    ]
    assert events[-1].reason == "the engine core is leaving"


def test_a_peer_that_never_reads_does_not_keep_a_hub_from_closing(context, endpoint, monkeypatch):
    wire, client = Wire(context, endpoint), make_link(context, endpoint)
    pump(wire, client, opened)
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    stepped = SimpleNamespace(monotonic=lambda: now, sleep=sleep)
    monkeypatch.setattr(module, "time", stepped)
    wire.server.close()
    assert FAREWELL <= now < FAREWELL + 0.5
    client.close()


def test_a_refused_hello_leaves_its_reason(context, endpoint):
    server = SessionServer(context, endpoint, msgspec.msgpack.Decoder(list), PATIENT, BOOT)
    client = make_link(context, endpoint)

    def refuse(_: list) -> bool:
        for event in server.poll(time.monotonic()):
            if isinstance(event, Opened):
                server.end(event.session, "you speak [9], allowed is [1]")
        return "allowed" in client.last_reason

    events = pump(None, client, refuse)
    assert not opened(events)
    assert not client.opened
    assert not client.send(["x"])


@pytest.fixture
def peer(endpoint: str, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen]:
    settings, mode = getattr(request, "param", (PATIENT, "echo"))
    process = start_peer(endpoint, mode, settings)
    yield process
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.communicate()


def test_a_killed_peer_is_noticed(context, endpoint, peer):
    wire = Wire(context, endpoint)
    pump(wire, None, lambda _: bool(wire.of(Opened)))
    peer.kill()
    pump(wire, None, lambda _: bool(wire.of(Ended)))


def test_a_connection_that_breaks_under_unread_messages_only_ends_the_session(endpoint):
    script = Path(__file__).with_name("broken_connection.py")
    done = subprocess.run(
        [sys.executable, str(script), endpoint, "40"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    reasons = done.stdout.splitlines()
    assert len(reasons) == 40
    assert all(reason.startswith("ended: the pipe") for reason in reasons)


@pytest.mark.parametrize(
    "parts", [[], [b""], [b"payload"], [b"", b"x" * 70_000, b"z"], [b"p"] * (MAX_FRAMES - 1)]
)
def test_parts_that_travel_as_one_come_apart_again(parts):
    header = pack_header(BOOT, FrameKind.DATA, 3)
    joined = join(header, parts)
    assert split(joined) == [header, *parts]
    if parts:
        for cut in (joined[:-1], joined[: len(header) + 3], joined + b"x"):
            with pytest.raises(BadFrame):
                split(cut)


def test_a_message_of_too_many_parts_is_refused():
    with pytest.raises(BadFrame, match="ambiguous parts"):
        split(join(pack_header(BOOT, FrameKind.DATA, 3), [b""] * MAX_FRAMES))


@pytest.mark.parametrize(
    "peer", [(FREEZING, "echo"), (FREEZING, "kept")], indirect=True, ids=["alone", "with heartbeat"]
)
def test_a_frozen_peer_loses_its_session_and_comes_back_with_a_new_one(context, endpoint, peer):
    wire = Wire(context, endpoint, settings=FREEZING)
    pump(wire, None, lambda _: bool(wire.of(Opened)))
    freeze(peer.pid)
    before = wire.server.sessions
    for session in before:
        wire.server.send(session, ["sent to a frozen peer"])
    pump(wire, None, lambda _: not wire.server.sessions)
    peer.send_signal(signal.SIGCONT)
    told: set[bytes] = set()

    def answered(_: list[Event]) -> bool:
        # On a machine that stands still for so long, the new session may end like the old one.
        for fresh in set(wire.server.sessions) - told:
            assert fresh not in before
            wire.server.send(fresh, ["fresh"])
            told.add(fresh)
        return bool(wire.of(Received))

    pump(wire, None, answered)
    for echo in wire.of(Received):
        assert echo.session in told
        assert echo.message[0] == "echo"
        assert echo.message[2] == ["fresh"]


def test_a_peer_that_does_not_read_fills_its_pipe_and_is_cut(context, endpoint, peer):
    """The server never blocks and never queues without bound."""
    server = SessionServer(context, endpoint, msgspec.msgpack.Decoder(list), PATIENT, BOOT)
    session = b""
    deadline = time.monotonic() + 60
    while not session and time.monotonic() < deadline:
        for event in server.poll(time.monotonic()):
            if isinstance(event, Opened):
                session = event.session
                server.send(session, ["welcome"])
        time.sleep(0.005)
    time.sleep(0.1)
    freeze(peer.pid)
    sent = 0
    while session in server.sessions and sent < 1_000_000:
        server.send(session, ["x" * 200])
        sent += 1
    assert session not in server.sessions
    reasons = [e.reason for e in server.poll(time.monotonic()) if isinstance(e, Ended)]
    assert reasons == ["its pipe is full"]


def test_a_flooding_peer_does_not_starve_another(context, endpoint):
    flooder = start_peer(endpoint, "flood")
    try:
        wire = Wire(context, endpoint)
        pump(wire, None, lambda _: len(wire.of(Received)) > 2000, seconds=60)
        client = make_link(context, endpoint)
        pump(wire, client, opened, seconds=60)
        wire.events.clear()

        def mine_has_come(_: list[Event]) -> bool:
            found = any(each.message == ["mine"] for each in wire.of(Received))
            wire.events.clear()  # There are ever more of the other's.
            return found

        assert client.send(["mine"])
        pump(wire, client, mine_has_come, seconds=60)
        batch = wire.server.poll(time.monotonic())
        # One poll takes a bounded number, so the owner can step. Sessions that are found to be gone
        # come on top: the flooder, whose pipe is full, begins one after the other.
        assert len([each for each in batch if not isinstance(each, Ended)]) <= DRAIN_LIMIT
    finally:
        flooder.kill()
        flooder.communicate()


def test_an_engine_core_that_cannot_be_used_is_dialled_ever_later(context, endpoint):
    """One whose model can't be read was dialled twelve times a second, for ever."""
    wire, client = Wire(context, endpoint), make_link(context, endpoint)
    delays = []
    for _ in range(10):
        pump(wire, client, opened)
        client.refuse("its tokenizer is broken")
        delays.append(client._redial_at - client._now)
        pump(wire, client, ended)
        wire.clock.ahead += delays[-1]
    # Any part of the pause from a half on: many don't come back at the same moment.
    pauses = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    parts = [delay / pause for delay, pause in zip(delays, pauses, strict=True)]
    assert min(parts) >= 0.5 - 1e-6
    assert max(parts) <= 1.0 + 1e-6
    assert len(set(delays)) == len(delays)
    pump(wire, client, opened)
    client.end("a death like others")
    assert client._redial_at - client._now <= 0.05 + 1e-6
    client.close()


def test_lane_numbers_and_gaps():
    numbering = Numbering(0.0, boot=BOOT, expected_boot=BOOT)
    numbering.accept(NO_BOOT, 0, 1.0)
    numbering.accept(BOOT, 1, 2.0)
    with pytest.raises(BadFrame, match="message 3 came where 2 was due"):
        numbering.accept(BOOT, 3, 3.0)
    assert numbering.last_heard == 2.0
    assert not numbering.silent(2.3, 0.4)
    assert numbering.silent(2.5, 0.4)
