"""An answer whose sequence the server has ended: each protocol says so as far as it has a word."""

from __future__ import annotations

import json
from collections.abc import Iterable

import httpx
import pytest

from penstock.client import SequenceDelta
from penstock.config.settings import GatewayConfig
from penstock.request.sampling_params import SamplingParams
from penstock_gateway.app import create_app
from penstock_gateway.batches.in_process import ask
from penstock_gateway.keys.ring import Caller
from tests.gateway.fake_engine import FakeEngineClient, Step

TALK = {"messages": [{"role": "user", "content": "Hi"}]}
SHOWN = {
    "/v1/completions": {"prompt": "Hi"},
    "/v1/chat/completions": TALK,
    "/api/chat": {**TALK, "model": "org/tiny-model"},
}
REFUSED = {
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {**TALK, "max_tokens": 9, "model": "org/tiny-model"},
}


def aborted(prompt: list[int], params: SamplingParams) -> Iterable[Step]:
    yield [SequenceDelta(index=0, text="ab", token_ids=[97, 98])]
    yield [SequenceDelta(index=0, finish_reason="abort")]


@pytest.fixture(autouse=True)
def aborting(engine: FakeEngineClient) -> None:
    engine.script = aborted


@pytest.mark.parametrize("path", SHOWN)
async def test_whole(http: httpx.AsyncClient, path: str) -> None:
    reply = await http.post(path, json={**SHOWN[path], "stream": False})
    assert reply.status_code == 200, reply.text
    body = reply.json()
    if path == "/api/chat":
        assert (body["message"]["content"], body["done_reason"]) == ("ab", "abort")
        return
    (choice,) = body["choices"]
    assert (choice.get("text") or choice["message"]["content"]) == "ab"
    assert choice["finish_reason"] == "abort"
    assert body["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("path", SHOWN)
async def test_streamed(http: httpx.AsyncClient, path: str) -> None:
    reply = await http.post(path, json={**SHOWN[path], "stream": True})
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
    if path == "/api/chat":
        assert json.loads(lines[-1])["done_reason"] == "abort"
        return
    assert lines[-1] == "[DONE]"
    assert json.loads(lines[-2])["choices"][0]["finish_reason"] == "abort"


@pytest.mark.parametrize("path", REFUSED)
async def test_where_there_is_no_word_for_it(http: httpx.AsyncClient, path: str) -> None:
    reply = await http.post(path, json=REFUSED[path])
    assert reply.status_code in (503, 529)
    assert "aborted by the server" in reply.text
    reply = await http.post(path, json={**REFUSED[path], "stream": True})
    assert "aborted by the server" in reply.text


@pytest.mark.parametrize("path", REFUSED)
async def test_a_stream_that_could_go_on_elsewhere_is_told_all_the_same(
    http: httpx.AsyncClient, path: str
) -> None:
    """Its client would go on with what an operator has ended."""
    body = {**REFUSED[path], "stream": True, "stream_options": {"resumable": True}}
    reply = await http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    assert "aborted by the server" in reply.text


async def test_what_is_made_in_the_background_is_an_error_there(
    engine: FakeEngineClient,
) -> None:
    app = create_app(engine, GatewayConfig())  # type: ignore[arg-type]
    body = json.dumps(SHOWN["/v1/completions"]).encode()
    assert (await ask(app, "/v1/completions", body, Caller(None, background=True))).status == 503
    assert (await ask(app, "/v1/completions", body, Caller(None))).status == 200


async def test_a_client_that_closes_aborts_what_nobody_asked_for(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.closed = True
    reply = await http.post("/v1/completions", json=SHOWN["/v1/completions"])
    assert reply.status_code == 503
