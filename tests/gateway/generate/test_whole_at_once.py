"""Streams whose beginnings, too, are written in the turn that brings them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from typing import Any

import httpx
import pytest
import uvloop

from penstock.client import SequenceDelta
from penstock.config.settings import GatewayConfig
from penstock.request.sampling_params import SamplingParams
from penstock_gateway.http.prompt_write import OneWrite
from tests.gateway import sse
from tests.gateway.byte_tokenizer import END
from tests.gateway.fake_engine import FakeEngineClient, Step
from tests.gateway.live_gateway import LiveGateway

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
COUNTED = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", CHAT),
    "chat, usage": ("/v1/chat/completions", CHAT | {"stream_options": {"include_usage": True}}),
    "chat, two": ("/v1/chat/completions", CHAT | {"n": 2} | COUNTED),
    "chat, timeline": ("/v1/chat/completions", CHAT),
    "completions, text alone": ("/v1/completions", {"prompt": "Hi"}),
    "completions": ("/v1/completions", {"prompt": "Hi", "echo": True} | COUNTED),
    "responses": ("/v1/responses", {"input": "Hi", "store": False}),
    "messages": ("/v1/messages", CHAT | {"max_tokens": 30}),
    "ollama": ("/api/chat", CHAT),
}
LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])


def script(prompt: list[int], params: SamplingParams) -> Iterable[Step]:
    """All choices at once, and the first ends before the others; text comes with each end."""
    for at in range(3):
        texts = [(index, f"<{at}{index}>") for index in range(params.n)]
        yield [SequenceDelta(index=index, text=text, token_ids=[65]) for index, text in texts]
        yield 0.01
    for index in range(params.n):
        yield [SequenceDelta(index=index, text="Ü", token_ids=[66, END], finish_reason="stop")]


def streamed(
    feeds: bool, name: str, loop: Callable[[], asyncio.AbstractEventLoop]
) -> tuple[list[tuple[str, str]], str]:
    """Headers and body of the answer, without what is new in each."""
    engine = FakeEngineClient(script)
    engine.feeds = feeds
    path, body = REQUESTS[name]
    headers = {"x-request-id": "one"} | ({"x-penstock-timeline": "1"} if "time" in name else {})
    with LiveGateway(engine, loop=loop) as gateway:
        answer = httpx.post(gateway.url + path, json=body | {"stream": True}, headers=headers)
    assert answer.status_code == 200
    text = re.sub(r"[0-9a-f]{32}", "ID", answer.text)
    text = re.sub(r'("created_at": *"?|"created":|"completed_at":)[^,"}]+', r"\1NOW", text)
    text = re.sub(r"(_duration\":)\d+", r"\1NOW", text)
    text = re.sub(r'"penstock_timeline":.*', "TIMELINE", text)
    return [each for each in answer.headers.multi_items() if each[0] != "date"], text


@LOOPS
@pytest.mark.parametrize("name", REQUESTS)
def test_it_says_the_same_as_a_task_does(
    name: str, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    at_once = streamed(True, name, loop)
    assert at_once == streamed(False, name, loop)
    assert "<20>" in at_once[1]


def test_what_a_stream_begins_with_comes_first_though_a_ping_came_before_it() -> None:
    def late(prompt: list[int], params: SamplingParams) -> Iterable[Step]:
        yield 0.6
        yield from script(prompt, params)

    config = GatewayConfig(keepalive_interval=0.2)
    with LiveGateway(FakeEngineClient(late), config) as gateway:
        url = f"{gateway.url}/v1/chat/completions"
        answer = httpx.post(url, json=CHAT | {"stream": True}, timeout=60)
    assert answer.text.startswith(": ping\n")
    first, second, *_ = sse.parse(answer.text)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert second["choices"][0]["delta"] == {"content": "<00>"}


@LOOPS
def test_requests_follow_one_another_on_a_connection(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with (
        LiveGateway(FakeEngineClient(script), loop=loop) as gateway,
        httpx.Client(limits=httpx.Limits(max_connections=1)) as client,
    ):
        url = f"{gateway.url}/v1/chat/completions"
        for _ in range(20):
            answer = client.post(url, json=CHAT | {"stream": True})
            assert sse.text_of(sse.parse(answer.text)) == "<00><10><20>Ü"


class Transport(asyncio.Transport):
    def __init__(self, order: list[object]) -> None:
        self._order = order

    def close(self) -> None:
        self._order.append("closed")

    def is_closing(self) -> bool:
        return "closed" in self._order


def test_pieces_leave_as_one_and_before_the_connection_closes() -> None:
    order: list[object] = []
    whole = OneWrite(Transport(order), order.append)
    whole.write(b"head")
    whole.write(b"body")
    whole.flush()
    whole.write(b"end")
    assert not whole.is_closing()
    whole.close()
    whole.flush()
    assert order == [b"headbody", b"end", "closed"]
    assert whole.is_closing()
