"""What a request says that its output will resemble reaches the engine, and is counted."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from penstock.protocol.from_frontend import MAX_PREDICTION_TOKENS
from tests.gateway import sse
from tests.gateway.fake_engine import CONTEXT, MODEL, FakeEngineClient

BODIES = {
    "/v1/chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"model": MODEL, "prompt": "Hi"},
}
PARTS = [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]


def details(usage: dict[str, Any]) -> tuple[int, int]:
    found = usage["completion_tokens_details"]
    return found["accepted_prediction_tokens"], found["rejected_prediction_tokens"]


@pytest.mark.parametrize("url", BODIES)
@pytest.mark.parametrize("content", ["abc", PARTS], ids=["text", "parts"])
async def test_it_is_sent_as_tokens_and_counted(
    http: httpx.AsyncClient, engine: FakeEngineClient, url: str, content: object
) -> None:
    plain = (await http.post(url, json=BODIES[url])).json()
    body = {**BODIES[url], "prediction": {"type": "content", "content": content}}
    found = (await http.post(url, json=body)).json()
    assert list(engine.generations[-1].prediction) == list(b"abc")
    assert [details(reply["usage"]) for reply in (plain, found)] == [(0, 0), (7, 2)]
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    events = sse.parse((await http.post(url, json=body)).text)
    assert details(events[-1]["usage"]) == (7, 2)


async def test_several_prompts_have_the_same(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    body = {"model": MODEL, "prompt": ["a", "b"], "prediction": {"content": "xy"}}
    found = (await http.post("/v1/completions", json=body)).json()
    assert [list(each.prediction) for each in engine.generations] == [list(b"xy")] * 2
    assert details(found["usage"]) == (14, 4)


async def test_what_is_too_long_is_left_out(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    url = "/v1/chat/completions"
    body = {**BODIES[url], "prediction": {"type": "content", "content": "x" * 4_000}}
    assert (await http.post(url, json=body)).status_code == 200
    assert len(engine.generations[-1].prediction) == min(CONTEXT, MAX_PREDICTION_TOKENS)


@pytest.mark.parametrize(
    "prediction",
    ["x", {"type": "other", "content": "x"}, {"type": "content"}, {"content": [{"image": "x"}]}],
)
async def test_other_shapes_are_refused_by_name(
    http: httpx.AsyncClient, prediction: object
) -> None:
    url = "/v1/chat/completions"
    reply = await http.post(url, json={**BODIES[url], "prediction": prediction})
    assert reply.status_code == 400
    assert "prediction" in reply.json()["error"]["message"]
