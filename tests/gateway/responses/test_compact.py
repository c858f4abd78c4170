"""POST /v1/responses/compact with OpenAI's SDK, over a scripted engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from penstock_gateway.responses.input_items import MADE_HERE, QUESTION
from tests.gateway.batches.storing import Storing, storing
from tests.gateway.conversations.conversing import client, last_prompt, said, texts
from tests.gateway.fake_engine import MODEL, FakeEngineClient, say

URL = "/v1/responses/compact"


@pytest.fixture
async def gateway(tmp_path: Path, engine: FakeEngineClient) -> AsyncIterator[Storing]:
    engine.script = say("Short.")
    limits = msgspec.structs.replace(engine.welcome.limits, max_model_len=4096)
    engine.welcome = msgspec.structs.replace(engine.welcome, limits=limits)
    async with storing(tmp_path / "data", engine, stored_response_hours=1) as gateway:
        yield gateway


@pytest.fixture
async def sdk(gateway: Storing) -> AsyncIterator[openai.AsyncOpenAI]:
    async with client(gateway) as sdk:
        yield sdk


async def test_the_model_summarises_and_reads_its_summary(
    gateway: Storing, sdk: openai.AsyncOpenAI
) -> None:
    call: Any = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    told: Any = {"type": "function_call_output", "call_id": "c", "output": "42"}
    made = await sdk.responses.compact(
        model=MODEL, input=[said("One?"), call, told], instructions="Be brief."
    )
    asked = last_prompt(gateway)
    assert asked.startswith("system: Be brief.\nuser: One?\n")
    assert asked.endswith(f"42\nuser: {QUESTION}\nassistant:")
    (item,) = made.output
    assert item.type == "compaction"
    assert item.encrypted_content == f"{MADE_HERE}Short.0"
    assert made.usage.input_tokens == len(asked)
    # It stands for what was said.
    following = [item.model_dump(exclude_none=True), said("Two?")]
    await sdk.responses.create(model=MODEL, input=following)
    assert last_prompt(gateway) == (f"user: {QUESTION}\nassistant: Short.0\nuser: Two?\nassistant:")
    # And can be compacted again, and kept.
    await sdk.responses.compact(model=MODEL, input=following)
    assert "assistant: Short.0\nuser: Two?\n" in last_prompt(gateway)
    conversation = (await sdk.conversations.create(items=following)).id
    await sdk.responses.create(model=MODEL, input="Three?", conversation=conversation)
    assert "assistant: Short.0\nuser: Two?\nuser: Three?" in last_prompt(gateway)
    listed = (await sdk.conversations.items.list(conversation, order="asc")).data
    assert listed[0].type == "compaction"
    assert await texts(sdk, conversation) == ["Two?", "Three?", "Short.0"]


async def test_of_a_stored_response(gateway: Storing, sdk: openai.AsyncOpenAI) -> None:
    first = await sdk.responses.create(model=MODEL, input="One?")
    made = await sdk.responses.compact(model=MODEL, previous_response_id=first.id)
    said_before = "user: One?\nassistant: Short.0\n"
    assert last_prompt(gateway) == f"{said_before}user: {QUESTION}\nassistant:"
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.retrieve(made.id)


async def test_an_empty_summary_is_an_error(gateway: Storing, sdk: openai.AsyncOpenAI) -> None:
    gateway.engine.script = lambda prompt, params: [
        step
        for step in say(" ")(prompt, params)
        if isinstance(step, list) and step[0].finish_reason
    ]
    with pytest.raises(openai.InternalServerError) as failed:
        await sdk.responses.compact(model=MODEL, input="One?")
    assert failed.value.code == "compaction_failed"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (URL, {}, "input"),
        (URL, {"input": []}, "input"),
        (URL, {"input": "x", "stream": True}, "stream"),
        (URL, {"input": "x", "tools": []}, "tools"),
        (URL, {"input": [{"type": "nonsense"}]}, "input[0].type"),
        (
            "/v1/responses",
            {"input": [{"type": "compaction", "encrypted_content": "gAAAA"}]},
            "input[0].encrypted_content",
        ),
        ("/v1/responses", {"input": [{"type": "compaction"}]}, "input[0].encrypted_content"),
    ],
)
async def test_a_wrong_field_of_a_compaction_is_named(
    gateway: Storing, path: str, body: Any, param: str
) -> None:
    refused = await gateway.http.post(path, json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param
