"""A preparer that is killed or stopped at any point of its work: the request is done again or fails
with a reason, another tenant's is answered meanwhile, and the next one is, too."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.config.settings import GatewayConfig
from penstock.process.isolated_child import HEADER
from penstock_gateway.preparing.answers import ANSWERS, Home
from penstock_gateway.preparing.channel import Channel
from penstock_gateway.preparing.preparer import Preparer
from penstock_gateway.preparing.wire import HandledWhole, OpenedBody, PreparedBody, encode
from tests.gateway.fake_engine import FakeEngineClient
from tests.gateway.live_gateway import LiveGateway

pytestmark = pytest.mark.timeout(300)

HomeReply = Callable[[Home, bytes], Awaitable[bytes]]

MANY = [f"{place:090d}" for place in range(100)]
"""Prompts that together are more than the gateway prepares itself."""
COMPLETION: tuple[str, dict[str, Any]] = (
    "/v1/completions",
    {"prompt": MANY, "max_tokens": 4, "seed": 1},
)
TOKENS: tuple[str, dict[str, Any]] = ("/tokenize", {"prompt": "word " * 4000})
POINTS = {
    "begins": COMPLETION,
    "has begun": COMPLETION,
    "reads": COMPLETION,
    "has opened": COMPLETION,
    "prepares": COMPLETION,
    "half a prepared request": COMPLETION,
    "has prepared": COMPLETION,
    "answers": TOKENS,
    "asks its gateway": TOKENS,
    "has a large answer": TOKENS,
    "half a reply": TOKENS,
    "has answered": TOKENS,
}
SAID = ("died", "stood still")
LARGE = bytes(8 << 20)
"""Stands in front of a large answer: more than a socket holds."""


class Fate:
    """Comes to the first process but the gateway's that gets to the point."""

    def __init__(self, point: str, number: int, folder: Path) -> None:
        self._gateway, self._met = os.getpid(), folder / "met"
        self._point, self._number = point, number

    def at(self, point: str) -> None:
        if self.comes(point):
            self.strike()

    @property
    def is_of_large_answers(self) -> bool:
        return self._point == "has a large answer"

    def comes(self, point: str) -> bool:
        """Whether it comes here: once, and to one of those that are here at the same time."""
        if point != self._point or os.getpid() == self._gateway:
            return False
        try:
            os.close(os.open(self._met, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def strike(self) -> None:
        os.kill(os.getpid(), self._number)

    @property
    def has_come(self) -> bool:
        return self._met.exists()


def arrange(fate: Fate, patch: pytest.MonkeyPatch) -> None:
    """Has preparers, which are forks of this process, meet it."""
    begin, send, ask, receive = Channel.begin, Channel.send, Channel.ask, Channel._receive
    open_body, prepare, handle = Preparer._open, Preparer._prepare, Preparer._handle

    def begins(self: Channel) -> None:
        fate.at("begins")
        begin(self)
        fate.at("has begun")

    async def sends(self: Channel, message: Any) -> None:
        kind = type(message).__name__
        half = {"PreparedBody": "half a prepared request", "HandledWhole": "half a reply"}.get(kind)
        if half is not None and fate.comes(half):
            payload = encode(message)
            frame = HEADER.pack(len(payload)) + payload
            os.set_blocking(self._socket.fileno(), True)
            self._socket.sendall(frame[: len(frame) // 2])
            fate.strike()
        await send(self, message)
        after = {"OpenedBody": "opened", "PreparedBody": "prepared", "HandledWhole": "answered"}
        fate.at(f"has {after.get(kind)}")

    async def asks(self: Channel, what: str, payload: bytes) -> bytes:
        fate.at("asks its gateway")
        told = await ask(self, what, payload)
        return told[len(LARGE) :] if fate.is_of_large_answers else told

    async def receives(self: Channel, size: int) -> bytearray:
        if size > len(LARGE):
            fate.at("has a large answer")
        return await receive(self, size)

    def opens(self: Preparer, task: Any) -> OpenedBody:
        fate.at("reads")
        return open_body(self, task)

    async def prepares(self: Preparer, task: Any) -> PreparedBody:
        fate.at("prepares")
        return await prepare(self, task)

    async def handles(self: Preparer, task: Any) -> HandledWhole:
        fate.at("answers")
        return await handle(self, task)

    patch.setattr(Channel, "begin", begins)
    patch.setattr(Channel, "send", sends)
    patch.setattr(Channel, "ask", asks)
    patch.setattr(Channel, "_receive", receives)
    patch.setattr(Preparer, "_open", opens)
    patch.setattr(Preparer, "_prepare", prepares)
    patch.setattr(Preparer, "_handle", handles)
    if fate.is_of_large_answers:
        for what, answer in ANSWERS.items():
            patch.setitem(ANSWERS, what, enlarged(answer))


def enlarged(answer: HomeReply) -> HomeReply:
    async def answers(home: Home, payload: bytes) -> bytes:
        return LARGE + await answer(home, payload)

    return answers


@pytest.fixture
def gateway() -> Iterator[LiveGateway]:
    with LiveGateway(FakeEngineClient(), GatewayConfig()) as live:
        yield live


def post(live: LiveGateway, request: tuple[str, dict[str, Any]], tenant: str) -> httpx.Response:
    path, body = request
    headers = {"authorization": f"Bearer {tenant}"}
    return httpx.post(f"{live.url}{path}", json=body, headers=headers, timeout=120)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("point", POINTS)
def test_at_every_point(
    point: str,
    number: int,
    gateway: LiveGateway,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fate, request = Fate(point, number, tmp_path), POINTS[point]
    arrange(fate, monkeypatch)
    replies: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: replies.append(post(gateway, request, "one")))
    asking.start()
    other = post(gateway, request, "other")
    asking.join(120)
    assert fate.has_come
    # Whom of the two it met is open; the other notices nothing.
    statuses = sorted(reply.status_code for reply in (replies[0], other))
    assert statuses in ([200, 200], [200, 503])
    for reply in (replies[0], other):
        assert reply.status_code == 200 or any(word in reply.text for word in SAID)
    if number == signal.SIGKILL:
        assert statuses == [200, 200], "it wasn't done again"
    # One that was stopped after its answer is found to be when its next body comes.
    post(gateway, request, "one")
    for tenant in ("one", "other"):
        again = post(gateway, request, tenant)
        assert again.status_code == 200, again.text
        good = next(reply for reply in (replies[0], other) if reply.status_code == 200)
        assert known(again) == known(good)


def known(reply: httpx.Response) -> Any:
    """What doesn't differ from one request to the next."""
    return {key: value for key, value in reply.json().items() if key not in ("id", "created")}
