"""Whatever the message of whichever WebSocket is full of, the event loop stands still for no more
than 50 ms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from penstock_gateway.endpoints import sockets_of
from penstock_gateway.http.server import MAX_MESSAGE
from penstock_gateway.realtime import endpoint as realtime
from penstock_gateway.realtime.messages import ClientMessage
from tests import thinning
from tests.gateway.heartbeat.beaten import PATIENCE, BeatenGateway, beaten
from tests.gateway.heartbeat.beating import collecting_as_a_gateway, latest
from tests.gateway.heartbeat.bodies import Case, cases_of, minimal
from tests.gateway.realtime.hearing import Listener

pytestmark = pytest.mark.timeout(600)

SAID: dict[str, Any] = {realtime.PATH: ClientMessage}
"""What clients say, by the socket's path."""
CASES = 4
"""Cases of a message, without --long."""


def kinds() -> Iterator[tuple[str, Any]]:
    for path, union in SAID.items():
        for kind in union.__args__:
            yield path, kind


@pytest.fixture(scope="module")
def gateway() -> Iterator[BeatenGateway]:
    engine = Listener()
    with collecting_as_a_gateway():
        try:
            with beaten(engine) as found:
                yield found
        finally:
            engine.text.close()


def test_every_socket_is_tried(gateway: BeatenGateway) -> None:
    assert {route.path for route in sockets_of(gateway.service)} == set(SAID)


def cases(kind: Any) -> list[Case]:
    found = list(cases_of(kind, minimal(inspect.type_info(kind))))
    if thinning.every:
        return found
    return sorted(found, key=lambda case: found.index(case) * thinning.GOLDEN % 1)[:CASES]


@pytest.mark.parametrize(
    ("path", "kind"), kinds(), ids=lambda each: getattr(each, "__name__", each)
)
def test_a_message_full_of_anything(gateway: BeatenGateway, path: str, kind: Any) -> None:
    late = []
    for case in cases(kind):
        text = case.body(MAX_MESSAGE - 1).decode()
        _, held = gateway.watched(lambda text=text: say(gateway, path, text))  # type: ignore[misc]
        if held > latest():
            late.append(f"{case.field} of {case.fill}: {1000 * held:.0f} ms late")
    assert not late, "\n".join(late)


@pytest.mark.parametrize("pieces", ["one by one", "empty", "pings"])
def test_frames_without_end(gateway: BeatenGateway, pieces: str) -> None:
    def send() -> None:
        try:
            with connect(f"ws://127.0.0.1:{gateway.port}{realtime.PATH}") as client:
                if pieces == "pings":
                    for number in range(5000):
                        client.ping(str(number))
                else:
                    client.send(["a" if pieces == "one by one" else ""] * 5000)
                client.send(json.dumps({"type": "over"}))
                until_over(client)
        except ConnectionClosed:
            pass

    _, held = gateway.watched(send)
    assert held <= latest()


def say(gateway: BeatenGateway, path: str, text: str) -> None:
    """Returns when the message has been dealt with."""
    with connect(f"ws://127.0.0.1:{gateway.port}{path}") as client:
        client.send(json.dumps({"type": "session.update"}))
        client.send(text)
        client.send(json.dumps({"type": "over"}))
        until_over(client)


def until_over(client: Any) -> None:
    while True:
        told = msgspec.json.decode(client.recv(timeout=PATIENCE))
        if told.get("code") == "unknown_event":
            return
