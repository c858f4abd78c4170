"""A busy owner: its sessions live on, what comes is kept, and handed out in bounded turns."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq

from penstock.transport import heartbeat
from penstock.transport.events import Ended, Opened, Received
from penstock.transport.heartbeat import Heartbeat
from penstock.transport.inbound import DRAIN_LIMIT, INBOX_BYTES
from penstock.transport.wire import NO_BOOT, FrameKind, pack_header
from tests.shared.transport.transport_wire import PATIENT, Clock, Wire, make_link, opened, pump

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/s"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time as the heartbeat is told it too."""
    clock = Clock()
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=clock))
    return clock


@pytest.fixture
def beating() -> Iterator[Heartbeat]:
    beating = Heartbeat()
    yield beating
    beating.stop()


def wait_until(done: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() >= deadline:
            raise TimeoutError("it didn't happen in time")
        time.sleep(0.002)


def both_hear(client, server, clock: Clock, *, seconds: float) -> None:
    """Lets so much time pass, in steps in which each side must hear from the other."""
    [numbering] = server._numberings.values()
    over = clock() + seconds
    while clock() < over:
        clock.ahead += PATIENT.peer_timeout / 3
        since = clock()
        wait_until(lambda t=since: client._numbering.last_heard >= t)
        wait_until(lambda t=since: numbering.last_heard >= t)


def test_owners_that_are_busy_lose_no_session(context, endpoint, clock, beating):
    """Nobody takes a turn for three timeouts, at either end."""
    wire, client = Wire(context, endpoint, clock=clock), make_link(context, endpoint)
    pump(wire, client, opened)
    woken = threading.Event()
    beating.join(wire.server)
    beating.join(client, woken.set)
    wire.server.send(wire.server.sessions[0], ["while you were busy"])
    assert client.send(["likewise"])
    both_hear(client, wire.server, clock, seconds=3 * PATIENT.peer_timeout)
    assert woken.is_set(), "what was taken, no file descriptor tells of any more"
    events = pump(wire, client, lambda seen: seen and wire.of(Received))
    assert [event.message for event in events] == [["while you were busy"]]
    assert [event.message for event in wire.of(Received)] == [["likewise"]]
    assert not wire.of(Ended)


def test_a_busy_hub_lets_those_who_dial_wait(context, endpoint, clock, beating):
    """A hello is taken, and beats go to who sent it: it need not dial again and again."""
    wire, client = Wire(context, endpoint, clock=clock), make_link(context, endpoint)
    beating.join(wire.server)
    beating.join(client)
    pump(None, client, lambda _: wire.server._numberings)
    both_hear(client, wire.server, clock, seconds=2 * PATIENT.peer_timeout)
    assert not wire.server.sessions, "its owner has not been told of it"
    pump(wire, client, opened)
    assert len(wire.of(Opened)) == 1
    assert client.last_reason == ""


@pytest.mark.parametrize("taken", [False, True], ids=["in the socket", "in the inbox"])
def test_after_a_freeze_nothing_is_acted_on_whichever_thread_wakes_first(context, endpoint, taken):
    wire, client = Wire(context, endpoint), make_link(context, endpoint)
    pump(wire, client, opened)
    assert client.send(["late"])
    wire.server.send(wire.server.sessions[0], ["late"])
    if taken:
        wire.clock.ahead += PATIENT.beat_interval
        wait_until(lambda: wire.server.keep_alive(wire.clock()) or len(wire.server._inbox))
        wait_until(lambda: client.keep_alive(wire.clock()) or len(client._inbox))
    else:
        assert wire.server.socket.poll(30_000)
        assert client.socket.poll(30_000)
    wire.clock.ahead += PATIENT.peer_timeout * 1.5
    now = wire.clock()
    assert wire.server.keep_alive(now), "the owner is to be woken"
    assert client.keep_alive(now)
    for end in (wire.server, client):
        events = end.poll(now)
        assert [type(event) for event in events] == [Ended]
        assert "silent" in events[0].reason


def taken_by_turns(end, now: Callable[[], float]) -> list[list]:
    """What each turn that has no time hands out, until nothing is left."""
    turns = [list(end.take(now(), until=0.0))]
    while end.more:
        turns.append(list(end.take(now(), until=0.0)))
    return turns


def test_a_turn_without_time_hands_out_one_event_and_the_rest_keeps_its_order(context, endpoint):
    wire, client = Wire(context, endpoint), make_link(context, endpoint)
    pump(wire, client, opened)
    [session] = wire.server.sessions
    for number in range(10):
        wire.server.send(session, [number])
        assert client.send([number])
    wire.server.end(session, "that was all")  # What waits here is not acted on, what was sent is.
    wait_until(lambda: client.keep_alive(time.monotonic() + 1) and len(client._inbox) == 11)
    turns = taken_by_turns(client, time.monotonic)
    *messages, end = [event for turn in turns for event in turn]
    assert [event.message for event in messages] == [[number] for number in range(10)]
    assert end == Ended(b"", "that was all")
    assert {len(turn) for turn in turns} == {1}
    assert wire.server.socket.poll(30_000)
    assert [event for turn in taken_by_turns(wire.server, wire.clock) for event in turn] == [
        Ended(session, "that was all")
    ]


def test_a_goodbye_is_told_after_what_was_said_before_it(context, endpoint):
    wire, client = Wire(context, endpoint), make_link(context, endpoint)
    pump(wire, client, opened)
    [session] = wire.server.sessions
    for number in range(5):
        assert client.send([number])
    # What is unread when a connection goes may be lost, so it stays.
    client.socket.send_multipart([pack_header(NO_BOOT, FrameKind.BYE, 0), b"enough"])
    wait_until(
        lambda: wire.server.keep_alive(time.monotonic() + 1) and len(wire.server._inbox) == 6
    )
    assert wire.server.sessions == [], "nothing more is sent there"
    events = [event for turn in taken_by_turns(wire.server, wire.clock) for event in turn]
    assert [event.message for event in events[:-1]] == [[number] for number in range(5)]
    assert events[-1] == Ended(session, "enough")


def test_who_has_said_goodbye_is_not_silent(context, endpoint):
    """What came before it counts, however late the owner has its turn."""
    wire, client = Wire(context, endpoint), make_link(context, endpoint)
    pump(wire, client, opened)
    [session] = wire.server.sessions
    wire.server.send(session, ["the last word"])
    wire.server.end(session, "that was all")
    wait_until(lambda: client.keep_alive(time.monotonic() + 1) and len(client._inbox) == 2)
    later = time.monotonic() + PATIENT.peer_timeout * 1.5
    assert client.keep_alive(later)
    assert client.poll(later) == [Received(b"", ["the last word"], []), Ended(b"", "that was all")]


@pytest.mark.parametrize("size", [1, 1_000_000], ids=["many", "large"])
def test_an_inbox_is_bounded_and_who_waits_behind_it_is_not_silent(context, endpoint, size):
    wire, client = Wire(context, endpoint), make_link(context, endpoint)
    pump(wire, client, opened)
    count = 2 * DRAIN_LIMIT if size == 1 else 2 * INBOX_BYTES // size
    for number in range(count):
        assert client.send([number], [bytes(size)])
    server = wire.server
    wait_until(lambda: server.keep_alive(time.monotonic() + 1) and server._inbox.full)
    for _ in range(6):  # Two timeouts, in which its beats can't be read.
        wire.clock.ahead += PATIENT.peer_timeout / 3
        assert server.keep_alive(wire.clock())
        assert len(server._inbox) <= DRAIN_LIMIT
        assert server._inbox._bytes <= INBOX_BYTES + size + 100
    pump(wire, None, lambda _: len(wire.of(Received)) == count)
    assert [event.message for event in wire.of(Received)] == [[number] for number in range(count)]
    assert not wire.of(Ended)
    assert server._inbox._bytes == 0
    wire.clock.ahead += PATIENT.peer_timeout * 1.5
    pump(wire, None, lambda _: wire.of(Ended))  # With nothing left to read, silence counts again.


def test_a_frame_that_does_not_decode_ends_its_session_when_its_turn_comes(context, endpoint):
    wire, client = Wire(context, endpoint), make_link(context, endpoint)
    pump(wire, client, opened)
    assert client.send(["sound"])
    assert client.send({"of": "another type"})
    assert client.send(["not acted on"])
    wait_until(
        lambda: wire.server.keep_alive(time.monotonic() + 1) and len(wire.server._inbox) == 3
    )
    events = [event for turn in taken_by_turns(wire.server, wire.clock) for event in turn]
    assert [type(event) for event in events] == [Received, Ended]
    assert "doesn't decode" in events[1].reason


# ---- the thread


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


class Kept:
    """Something to look after. looks: how often that was done."""

    beat_interval = 0.01

    def __init__(self, error: Exception | None = None) -> None:
        self.looks = 0
        self.error = error

    def keep_alive(self, now: float) -> bool:
        self.looks += 1
        if self.error is not None:
            raise self.error
        return True


def test_there_is_one_thread_while_somebody_is_looked_after(beating):
    first, second = Kept(), Kept()
    others = names().count("heartbeat")  # Of a client that other tests share.
    beating.join(first)
    beating.join(second)
    assert names().count("heartbeat") == others + 1
    beating.leave(first)
    assert names().count("heartbeat") == others + 1
    beating.leave(second)
    assert names().count("heartbeat") == others
    beating.leave(second)
    beating.join(first)
    before = first.looks
    wait_until(lambda: first.looks > before)


def test_who_fails_does_not_cost_the_others_their_beats(beating):
    broken, sound = Kept(RuntimeError("for the test")), Kept()
    woken = threading.Event()
    beating.join(broken)
    beating.join(sound, woken.set)
    assert woken.wait(30)
    before = sound.looks
    wait_until(lambda: sound.looks > before + 3)
    assert broken.looks == 1


def test_closed_ends_are_not_touched(context, endpoint, clock, beating):
    """Nobody takes them out first, and the context goes at once."""
    own = zmq.Context()
    wire, client = Wire(context, endpoint, clock=clock), make_link(own, endpoint)
    pump(wire, client, opened)
    beating.join(wire.server)
    beating.join(client)
    client.close()
    own.term()
    wire.server.close()
    clock.ahead += 1.0
    other = Kept()
    beating.join(other)
    wait_until(lambda: other.looks > 2)
    assert not client.keep_alive(clock())
    assert not wire.server.keep_alive(clock())


def test_a_forked_child_leaves_the_parents_sessions_alone():
    kept = Kept()
    heartbeat.PROCESS.join(kept)
    try:
        child = os.fork()
        if child == 0:
            own = Kept()
            clean = heartbeat.PROCESS._thread is None and not heartbeat.PROCESS._kept
            heartbeat.PROCESS.join(own)
            deadline = time.monotonic() + 60
            before = kept.looks
            while own.looks < 3 and time.monotonic() < deadline:
                time.sleep(0.002)
            os._exit(0 if clean and own.looks >= 3 and kept.looks == before else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        before = kept.looks
        wait_until(lambda: kept.looks > before)
    finally:
        heartbeat.PROCESS.leave(kept)


ABANDONED = """
import sys, threading, time, msgspec, zmq
from penstock.config.settings import TransportSettings
from penstock.transport.heartbeat import PROCESS
from penstock.transport.session_server import SessionServer
from penstock.transport.session_client import SessionClient
context, decoder = zmq.Context(), msgspec.msgpack.Decoder(list)
settings = TransportSettings(beat_interval=0.001)
server = SessionServer(context, sys.argv[1], decoder, settings, b"boot-one")
client = SessionClient(context, sys.argv[1], decoder, lambda: ["hello"], settings)
while not server.sessions:
    client.poll(time.monotonic())
    server.poll(time.monotonic())
PROCESS.join(server)
PROCESS.join(client)
"""


def test_a_program_that_closes_nothing_still_ends(endpoint):
    ended = subprocess.run(
        [sys.executable, "-c", ABANDONED, endpoint], capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stderr) == (0, "")
