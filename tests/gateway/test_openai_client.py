"""OpenAI's own SDK reads what the gateway writes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import msgspec
import openai
import pytest
from openai.types import (
    audio,
    batch_create_params,
    chat,
    completion_create_params,
    embedding_create_params,
    responses,
)

from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from penstock_gateway.batches.request import BatchRequest
from penstock_gateway.chat.endpoint import ChatRequest
from penstock_gateway.completions.endpoint import CompletionRequest
from penstock_gateway.pooling.embeddings import EmbeddingRequest
from penstock_gateway.responses.request import ResponsesRequest
from penstock_gateway.transcription.request import TranscriptionRequest, TranslationRequest
from tests.gateway.fake_engine import HELLO, MODEL, FakeEngineClient
from tests.gateway.live_gateway import LiveGateway

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def gateway() -> Iterator[LiveGateway]:
    with LiveGateway(FakeEngineClient()) as running:
        yield running


@pytest.fixture
def sdk(gateway: LiveGateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def async_sdk(gateway: LiveGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key="none", max_retries=0
    ) as client:
        yield client


QUESTION = [{"role": "user", "content": "Hi"}]

BODIES: list[tuple[Any, type[msgspec.Struct]]] = [
    (chat.completion_create_params.CompletionCreateParamsBase, ChatRequest),
    (completion_create_params.CompletionCreateParamsBase, CompletionRequest),
    (responses.response_create_params.ResponseCreateParamsBase, ResponsesRequest),
    (embedding_create_params.EmbeddingCreateParams, EmbeddingRequest),
    (audio.transcription_create_params.TranscriptionCreateParamsBase, TranscriptionRequest),
    (audio.translation_create_params.TranslationCreateParams, TranslationRequest),
    (batch_create_params.BatchCreateParams, BatchRequest),
]


@pytest.mark.parametrize(("theirs", "ours"), BODIES)
def test_every_field_of_the_sdk_is_known(theirs: Any, ours: type[msgspec.Struct]) -> None:
    """A field may be refused for its value, but never as one that nobody knows."""
    fields = {name for base in theirs.__mro__ for name in getattr(base, "__annotations__", ())}
    assert len(fields) > 3
    assert fields <= set(ours.__struct_encode_fields__)


def test_chat(sdk: openai.OpenAI) -> None:
    reply = sdk.chat.completions.create(
        model=MODEL, messages=QUESTION, n=2, logprobs=True, top_logprobs=3
    )
    assert [choice.message.content for choice in reply.choices] == [f"{HELLO}0", f"{HELLO}1"]
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].finish_reason == "stop"
    assert len(reply.choices[0].logprobs.content[0].top_logprobs) == 3
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    # What came back can be sent back.
    history = [*QUESTION, reply.choices[0].message, *QUESTION]
    assert sdk.chat.completions.create(model=MODEL, messages=history).choices
    raw = [*QUESTION, reply.choices[0].message.model_dump(), *QUESTION]
    assert sdk.chat.completions.create(model=MODEL, messages=raw).choices


def test_chat_stream(sdk: openai.OpenAI) -> None:
    stream = sdk.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"top_k": 5},
    )
    *chunks, last = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == f"{HELLO}0"
    assert last.usage.completion_tokens == len(f"{HELLO}0".encode()) + 1


def test_chat_stream_helper(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.stream(model=MODEL, messages=QUESTION) as stream:
        reply = stream.get_final_completion()
    assert reply.choices[0].message.content == f"{HELLO}0"


def test_completion(sdk: openai.OpenAI) -> None:
    reply = sdk.completions.create(model=MODEL, prompt=["a", "b"], logprobs=2)
    assert [choice.text for choice in reply.choices] == [f"{HELLO}0"] * 2
    assert reply.choices[0].logprobs.tokens[0] == "H"


def test_completion_stream(sdk: openai.OpenAI) -> None:
    chunks = list(sdk.completions.create(model=MODEL, prompt="a", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == f"{HELLO}0"


def test_models(sdk: openai.OpenAI) -> None:
    assert [model.id for model in sdk.models.list()] == [MODEL]
    assert sdk.models.retrieve(MODEL).owned_by == "penstock"


async def test_async(async_sdk: openai.AsyncOpenAI) -> None:
    reply = await async_sdk.chat.completions.create(model=MODEL, messages=QUESTION)
    assert reply.choices[0].message.content == f"{HELLO}0"
    text = ""
    async for chunk in await async_sdk.chat.completions.create(
        model=MODEL, messages=QUESTION, stream=True
    ):
        text += chunk.choices[0].delta.content or ""
    assert text == f"{HELLO}0"


def test_errors(sdk: openai.OpenAI, gateway: LiveGateway) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        sdk.chat.completions.create(model="gpt-4", messages=QUESTION)
    assert missing.value.code == "model_not_found"
    assert missing.value.request_id
    with pytest.raises(openai.BadRequestError) as bad:
        sdk.chat.completions.create(model=MODEL, messages=QUESTION, temperature=-1)
    assert bad.value.param == "temperature"
    gateway.engine.connected = False
    try:
        with pytest.raises(openai.InternalServerError) as away:
            sdk.chat.completions.create(model=MODEL, messages=QUESTION)
    finally:
        gateway.engine.connected = True
    assert away.value.status_code == 503


def test_error_in_mid_stream(sdk: openai.OpenAI, gateway: LiveGateway) -> None:
    from penstock.client import SequenceDelta
    from penstock.errors import RequestFailed

    usual = gateway.engine.script
    gateway.engine.script = lambda prompt, params: iter(
        [[SequenceDelta(index=0, text="a", token_ids=[97])], RequestFailed("broke")]
    )
    try:
        stream = sdk.chat.completions.create(model=MODEL, messages=QUESTION, stream=True)
        with pytest.raises(openai.APIError, match="broke"):
            list(stream)
    finally:
        gateway.engine.script = usual


@pytest.mark.parametrize("name", ["dummy", "tgi", "", None])
async def test_where_nobody_chose_a_model_the_served_one_answers(name: str | None) -> None:
    """As Hugging Face's InferenceClient(base_url=…) asks."""
    app = create_app(FakeEngineClient(), GatewayConfig())  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        body = {"messages": [{"role": "user", "content": "Hi"}]}
        body |= {} if name is None else {"model": name}
        reply = await http.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        assert reply.json()["model"] == MODEL
        body["model"] = "dummies"
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 404
