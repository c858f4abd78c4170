"""Bodies that come in take memory, of which one tenant gets a part, and what goes gives it back."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.settings import GatewayConfig
from penstock.errors import Overloaded
from penstock_gateway.http.body_room import BODIES, UNCOUNTED, BodyRoom, HeldBody
from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.live_gateway import Connection, LiveGateway
from tests.met import met

SIZE = 200_000
"""Bytes of the largest body."""
LINE = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


def _wait_for(state: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not state():
        if time.monotonic() >= until:
            raise TimeoutError
        time.sleep(0.01)


def _begin(gateway: LiveGateway, tenant: str) -> Connection:
    """A body of the largest size, of which the end is missing."""
    connection = gateway.connect()
    head = f"authorization: Bearer {tenant}\r\ncontent-length: {SIZE}\r\n\r\n"
    connection.socket.sendall(LINE + head.encode() + b" " * (SIZE - 10))
    return connection


def _asks(gateway: LiveGateway, tenant: str) -> httpx.Response:
    body = json.dumps({"prompt": "q", "max_tokens": 1}) + " " * (SIZE - 100)
    headers = {"authorization": f"Bearer {tenant}", "content-type": "application/json"}
    url = f"{gateway.url}/v1/completions"
    return httpx.post(url, content=body, headers=headers, timeout=60)


def test_one_tenants_bodies_leave_room_for_others() -> None:
    config = GatewayConfig(max_body_bytes=SIZE)
    with LiveGateway(FakeEngineClient(), config) as gateway, contextlib.ExitStack() as stack:
        room = gateway.service.bodies
        whole = room.free
        assert whole == BODIES * SIZE
        counted = SIZE - 10 - UNCOUNTED
        for _ in range(BODIES // 2 + 7):
            stack.enter_context(_begin(gateway, "hog"))
        most = whole // 2 // counted
        _wait_for(lambda: room.free <= whole - (most - 1) * counted)
        refused = _asks(gateway, "hog")
        while refused.status_code == 200:  # The last of them may yet be on their way.
            refused = _asks(gateway, "hog")
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert "leave no room for another" in refused.json()["error"]["message"]
        assert _asks(gateway, "other").status_code == 200
        stack.close()
        _wait_for(lambda: room.free == whole)
        assert _asks(gateway, "hog").status_code == 200
        _wait_for(lambda: room.free == whole)


@pytest.mark.parametrize("stream", [False, True])
def test_what_an_engine_core_has_taken_takes_no_room(stream: bool) -> None:
    """However long the answer goes on."""
    engine = FakeEngineClient()
    former, seen = engine.script, list[int]()

    def noted(*args: Any) -> Any:
        for step in former(*args):
            seen.append(room.free)
            yield step

    engine.script = noted
    with LiveGateway(engine, GatewayConfig()) as gateway:
        room = gateway.service.bodies
        whole = room.free
        body = {"prompt": ["q"] * 100, "stream": stream, "user": "u" * 400_000}
        reply = httpx.post(f"{gateway.url}/v1/completions", json=body, timeout=60)
        assert reply.status_code == 200, reply.text
        assert set(seen) == {whole}


@pytest.mark.parametrize("path", ["/", "/invocations", "/tokenize", "/v1/completions"])
def test_a_body_that_is_handed_on_is_counted_once(path: str) -> None:
    with LiveGateway(FakeEngineClient(), GatewayConfig()) as gateway:
        whole = gateway.service.bodies.free
        body = {"inputs": "q", "prompt": "q", "user": "u" * 400_000}
        reply = httpx.post(gateway.url + path, json=body, timeout=60)
        assert reply.status_code in (200, 400), reply.text
        _wait_for(lambda: gateway.service.bodies.free == whole)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 60), st.booleans()), max_size=40),
)
def test_no_tenant_has_more_than_it_leaves_free(steps: list[tuple[str, int, bool]]) -> None:
    room = BodyRoom(100)
    had: list[tuple[str, int]] = []
    refused = 0
    for tenant, size, leaves in steps:
        if leaves and had:
            room.leave(*had.pop(0))
            continue
        try:
            room.take(tenant, size)
        except Overloaded:
            refused += 1
            mine = sum(each for name, each in had if name == tenant)
            assert mine + size > room.free - size
            continue
        had.append((tenant, size))
        assert sum(each for name, each in had if name == tenant) <= room.free
    met("one was refused", refused)
    assert room.free == 100 - sum(size for _, size in had)
    for each in had:
        room.leave(*each)
    assert room.free == 100


def test_a_body_gives_back_what_it_took() -> None:
    room = BodyRoom(1_000_000)
    body = HeldBody(room, "one")
    body.grow(UNCOUNTED)
    assert room.free == 1_000_000
    body.grow(10)
    body.grow(5)
    assert room.free == 1_000_000 - 15
    body.leave()
    body.leave()
    assert room.free == 1_000_000
