"""Thoughts where clients of OpenAI's models look for them: as a summary, and in a text that they
send back where the server stores nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from tests.gateway.batches.storing import storing
from tests.gateway.fake_engine import MODEL, FakeEngineClient
from tests.gateway.responses.tool_answers import URL, built, events_from, said

THOUGHTS = "A river, é 👋."
ASKED = {"role": "user", "content": "Hi"}
SUMMARY: dict[str, Any] = {"reasoning": {"summary": "auto"}}
SEALED: dict[str, Any] = {"include": ["reasoning.encrypted_content"]}


@pytest.fixture
async def http(engine: FakeEngineClient) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(engine, GatewayConfig(reasoning_parser="deepseek_r1"))  # type: ignore[arg-type]
    engine.script = said(f"<think>{THOUGHTS}</think>Seine", seed=2)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


async def thoughts_of(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    reply = await http.post(URL, json={"model": MODEL, "input": "Hi", **fields})
    assert reply.status_code == 200, reply.text
    item: dict[str, Any] = reply.json()["output"][0]
    assert item["content"] == [{"type": "reasoning_text", "text": THOUGHTS}]
    return item


@pytest.mark.parametrize("name", ["summary", "generate_summary"])
async def test_a_summary_holds_them_where_it_is_asked_for(
    http: httpx.AsyncClient, name: str
) -> None:
    assert (await thoughts_of(http))["summary"] == []
    assert "encrypted_content" not in await thoughts_of(http)
    item = await thoughts_of(http, reasoning={name: "detailed"})
    assert item["summary"] == [{"type": "summary_text", "text": THOUGHTS}]

    body = {"model": MODEL, "input": "Hi", "stream": True, "reasoning": {name: "auto"}}
    events = events_from(await http.post(URL, json=body))
    told = [each for each in events if "reasoning_summary_" in each["type"]]
    kinds = [each["type"].removeprefix("response.reasoning_summary_") for each in told]
    deltas = len(kinds) - 3
    assert kinds == ["part.added", *["text.delta"] * deltas, "text.done", "part.done"]
    assert deltas > 1
    assert {each["summary_index"] for each in told} == {0}
    assert "".join(each["delta"] for each in told[1:-2]) == told[-2]["text"] == THOUGHTS
    # All else is as it is without a summary.
    rest = [each for each in events if each not in told]
    assert built(rest)[0]["summary"] == item["summary"]


async def test_openais_client_shows_the_summary(http: httpx.AsyncClient) -> None:
    client = openai.AsyncOpenAI(api_key="k", base_url="http://gateway/v1", http_client=http)
    streamed = ""
    async with client.responses.stream(model=MODEL, input="Hi", **SUMMARY) as stream:
        async for event in stream:
            if event.type == "response.reasoning_summary_text.delta":
                streamed += event.delta
        final: Any = await stream.get_final_response()
    assert streamed == final.output[0].summary[0].text == THOUGHTS


@pytest.mark.parametrize("kept", ["content", "summary", "encrypted_content"])
async def test_whichever_field_comes_back_is_read(
    http: httpx.AsyncClient, engine: FakeEngineClient, kept: str
) -> None:
    item = await thoughts_of(http, **SUMMARY, **SEALED)
    emptied = {"content": None, "summary": [], "encrypted_content": None}
    back = {**item, **{name: value for name, value in emptied.items() if name != kept}}
    answer = {"role": "assistant", "content": "Seine"}
    reply = await http.post(URL, json={"model": MODEL, "input": [ASKED, back, answer, ASKED]})
    assert reply.status_code == 200, reply.text
    shown = engine.template.calls[-1][0][1]
    assert (shown["content"], shown["reasoning_content"]) == ("Seine", THOUGHTS)


@pytest.mark.parametrize("sealed", ["gAAAAABo", "penstock:%", "penstock:/w==", "penstock:", ""])
async def test_what_others_have_sealed_is_left_out(
    http: httpx.AsyncClient, engine: FakeEngineClient, sealed: str
) -> None:
    back = {"type": "reasoning", "summary": [], "encrypted_content": sealed}
    answer = {"role": "assistant", "content": "Seine"}
    reply = await http.post(URL, json={"model": MODEL, "input": [ASKED, back, answer]})
    assert reply.status_code == 200, reply.text
    assert "reasoning_content" not in engine.template.calls[-1][0][1]


async def test_a_stored_response_tells_them_again(tmp_path: Path, engine: FakeEngineClient) -> None:
    engine.template.source = "{{ messages }} </think>"
    engine.script = said(f"<think>{THOUGHTS}</think>Seine", seed=2)
    async with storing(tmp_path, engine, stored_response_hours=1) as gateway:
        body = {"model": MODEL, "input": "Hi", "stream": True, "store": True, **SUMMARY, **SEALED}
        first = events_from(await gateway.http.post(URL, json=body))
        whole = first[-1]["response"]
        again = events_from(await gateway.http.get(f"{URL}/{whole['id']}?stream=true"))
        assert again[-1]["response"]["output"] == whole["output"]
        assert whole["output"][0]["summary"][0]["text"] == THOUGHTS
        kinds = {each["type"] for each in first}
        assert {each["type"] for each in again} == kinds
        assert "response.reasoning_summary_text.delta" in kinds
