"""When beats go out, and when silence is noticed, with many sessions: as if each look were at all
of them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest
import zmq

from penstock.config.settings import TransportSettings
from penstock.transport.events import Ended
from penstock.transport.session_client import ALONG, SessionClient
from penstock.transport.wire import FrameKind, Numbering
from tests.shared.transport.transport_wire import Wire, ended, make_link, opened, pump

pytestmark = pytest.mark.timeout(120)

SETTINGS = TransportSettings(beat_interval=1.0, peer_timeout=5.0)
CLIENTS = 12


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    with zmq.Context() as made:
        yield made


class Still:
    """A clock that only a test moves."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("seed", range(4))
def test_silence_and_beats_are_noticed_at_the_same_look_as_by_looking_at_all(
    context, endpoint, seed
):
    draw, clock = random.Random(seed), Still()
    wire = Wire(context, endpoint, settings=SETTINGS, clock=clock)
    clients = [make_link(context, endpoint, SETTINGS) for _ in range(CLIENTS)]
    numberings = wire.server._numberings
    num_silent = num_due = 0
    for _ in range(600):
        clock.now += draw.choice((0.01, 0.1, 0.3, 0.3, 1.1))
        now = clock.now
        unread = wire.server._unread and now - wire.server._looked <= SETTINGS.peer_timeout
        silent = {
            session
            for session, numbering in numberings.items()
            if now - numbering.last_heard > SETTINGS.peer_timeout and not unread
        }
        due = [
            numbering
            for session, numbering in numberings.items()
            if now - numbering.last_sent >= SETTINGS.beat_interval and session not in silent
        ]
        wire.poll()
        assert silent.isdisjoint(numberings)
        told = {each.session for each in wire.of(Ended) if "silent" in each.reason}
        assert told <= silent
        assert all(numbering.last_sent == now or numbering.over for numbering in due)
        num_silent, num_due = num_silent + len(silent), num_due + len(due)
        wire.events.clear()
        # Some never speak, others now and then, so that some are silent for too long.
        for place, client in enumerate(clients):
            if draw.random() < place / CLIENTS:
                client.poll(now)
        time.sleep(0.001)
    for end in (wire.server, *clients):
        end.close()
    assert num_silent >= 5
    assert num_due >= 100


def test_one_message_for_all_is_encoded_once(context, endpoint, monkeypatch):
    wire = Wire(context, endpoint)
    clients = [make_link(context, endpoint) for _ in range(3)]
    for client in clients:
        pump(wire, client, opened)
    encoder, encoded = wire.server._encoder, []

    class Counted:
        def encode(self, message):
            encoded.append(message)
            return encoder.encode(message)

    monkeypatch.setattr(wire.server, "_encoder", Counted())
    first, second = ["the same"], ["another"]
    for message in (first, second):
        for session in wire.server.sessions:
            wire.server.send(session, message)
    assert encoded == [first, second]
    for client in clients:
        heard = pump(wire, client, lambda events: len(events) >= 2)
        assert [event.message for event in heard] == [first, second]
    for end in (wire.server, *clients):
        end.close()


def beats_of(client: SessionClient, monkeypatch: pytest.MonkeyPatch, clock: Still) -> list[float]:
    """Moments at which the client beats from now on."""
    beats: list[float] = []
    seal = Numbering.seal

    def noted(numbering: Numbering, kind: FrameKind, now: float) -> bytes:
        if kind is FrameKind.BEAT and numbering is client._numbering:
            beats.append(clock.now)
        return seal(numbering, kind, now)

    monkeypatch.setattr(Numbering, "seal", noted)
    return beats


def test_a_beat_goes_along_with_what_comes_and_never_later_than_alone(
    context, endpoint, monkeypatch
):
    clock = Still()
    wire = Wire(context, endpoint, settings=SETTINGS, clock=clock)
    client = make_link(context, endpoint, SETTINGS)
    pump(wire, client, opened)
    [session] = wire.server.sessions
    beats = beats_of(client, monkeypatch, clock)
    interval, since = SETTINGS.beat_interval, client._numbering.last_sent

    def say_and_hear(moment: float) -> None:
        clock.now = moment
        wire.server._now = clock.now
        wire.server.send(session, ["news"])
        deadline = time.monotonic() + 30
        while client._numbering.last_heard < moment:
            client.poll(clock.now)
            if time.monotonic() >= deadline:
                raise TimeoutError
            time.sleep(0.001)

    for part in (0.3, ALONG - 0.05):
        say_and_hear(since + part * interval)
        assert beats == [], "it has just said something"
    say_and_hear(since + (ALONG + 0.05) * interval)
    assert beats == [clock.now]
    assert client.wait_hint(clock.now) == pytest.approx(interval)
    clock.now += 0.9 * interval
    client.poll(clock.now)
    assert len(beats) == 1, "nothing came with which it could go"
    assert client.wait_hint(clock.now) == pytest.approx(0.1 * interval)
    clock.now += 0.1 * interval + 1e-9
    client.poll(clock.now)
    assert len(beats) == 2
    for end in (wire.server, client):
        end.close()


def test_a_client_waits_no_longer_than_until_silence_is_noticed(context, endpoint):
    """Also where it sends so much that no beat is due for long."""
    clock = Still()
    wire = Wire(context, endpoint, settings=SETTINGS, clock=clock)
    client = make_link(context, endpoint, SETTINGS)
    pump(wire, client, opened)
    heard, waited = client._numbering.last_heard, 0
    while not ended(events := client.poll(clock.now)):
        client.send(["much"])
        clock.now += min(0.4, client.wait_hint(clock.now)) + 1e-9
        waited += 1
        assert waited < 100
    assert "silent" in events[0].reason
    assert clock.now - heard <= SETTINGS.peer_timeout + 0.01
    for end in (wire.server, client):
        end.close()
