"""OpenAI's own Python SDK against a real system: gateway, engine core, worker, default model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import openai
import pytest

from testing.serving import Server, wait_until

pytestmark = [pytest.mark.timeout(600)]

CAPITAL = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the capital of France?"},
]
STORY = "Once upon a time, in a small village,"


@pytest.fixture
def sdk(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", timeout=240, max_retries=0
    ) as client:
        yield client


@pytest.fixture
async def async_sdk(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="none", timeout=240, max_retries=0
    ) as client:
        yield client


def test_a_chat_names_paris(sdk: openai.OpenAI, server: Server) -> None:
    reply = sdk.chat.completions.create(
        model=server.model, messages=CAPITAL, temperature=0, max_tokens=24
    )
    choice = reply.choices[0]
    assert "Paris" in choice.message.content
    assert choice.finish_reason in ("stop", "length")
    usage = reply.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 1 <= usage.completion_tokens <= 24
    assert reply._request_id


def test_a_prompt_that_was_seen_before_is_not_computed_again(sdk: openai.OpenAI, server: Server):
    prompt = "Twelve rivers meet below the old town, and each has a name of its own. " * 4
    counts = []
    for _ in range(2):
        reply = sdk.completions.create(
            model=server.model, prompt=prompt, temperature=0, max_tokens=4, stream=False
        )
        counts.append(reply.usage.prompt_tokens_details.cached_tokens)
    assert counts[0] < 16
    assert reply.usage.prompt_tokens - 17 <= counts[1] < reply.usage.prompt_tokens


def test_streamed_chat_equals_whole(sdk: openai.OpenAI, server: Server) -> None:
    fields = {
        "model": server.model,
        "messages": [{"role": "user", "content": "Greet me in French, with an emoji."}],
        "temperature": 0.9,
        "seed": 11,
        "n": 2,
        "max_tokens": 12,
    }
    whole = sdk.chat.completions.create(**fields)
    texts, reasons, usage = ["", ""], [None, None], None
    for chunk in sdk.chat.completions.create(
        **fields, stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    # The second time the prompt is in the cache, which changes nothing else.
    assert usage.total_tokens == whole.usage.total_tokens
    assert usage.prompt_tokens == whole.usage.prompt_tokens


def test_completion_of_texts_and_of_their_tokens(sdk: openai.OpenAI, server: Server) -> None:
    fields = {"model": server.model, "temperature": 0, "max_tokens": 8}
    both = sdk.completions.create(prompt=[STORY, "2 + 2 ="], logprobs=2, **fields)
    assert [choice.index for choice in both.choices] == [0, 1]
    one_by_one = [sdk.completions.create(prompt=p, **fields) for p in (STORY, "2 + 2 =")]
    assert [r.choices[0].text for r in one_by_one] == [choice.text for choice in both.choices]
    for choice in both.choices:
        logprobs = choice.logprobs
        assert "".join(logprobs.tokens) == choice.text
        assert len(logprobs.token_logprobs) == 8
        for token, logprob, top in zip(
            logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True
        ):
            assert top[token] == logprob == max(top.values())  # greedy takes the likeliest
        assert logprobs.text_offset[0] == 0


def test_a_prompts_answer_does_not_depend_on_its_company(
    sdk: openai.OpenAI, server: Server
) -> None:
    fields = {"model": server.model, "temperature": 0, "max_tokens": 8}
    alone = sdk.completions.create(prompt=STORY, **fields).choices[0].text
    among = sdk.completions.create(prompt=["1, 2, 3,", STORY, "Dear Sir"], **fields)
    assert among.choices[1].text == alone


def test_a_stop_string_ends_the_text_before_it(sdk: openai.OpenAI, server: Server) -> None:
    fields = {"model": server.model, "prompt": STORY, "temperature": 0, "max_tokens": 16}
    text = sdk.completions.create(**fields).choices[0].text
    # From the middle of one word to the middle of the next: it spans tokens.
    space = text.index(" ", 8)
    stop = text[space - 2 : space + 3]
    expected = text[: text.index(stop)]
    whole = sdk.completions.create(**fields, stop=stop).choices[0]
    assert (whole.text, whole.finish_reason) == (expected, "stop")
    chunks = list(sdk.completions.create(**fields, stop=[stop], stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_async_and_many_at_once(async_sdk: openai.AsyncOpenAI, server: Server) -> None:
    async def ask(number: int) -> str:
        stream = await async_sdk.chat.completions.create(
            model=server.model,
            messages=[{"role": "user", "content": f"Tell me about the number {number}."}],
            temperature=0.7,
            seed=number,
            max_tokens=8,
            stream=True,
        )
        return "".join([c.choices[0].delta.content or "" async for c in stream])

    alone = await ask(3)
    together = await asyncio.gather(*map(ask, range(6)))
    assert together[3] == alone
    assert all(together)
    reply = await async_sdk.completions.create(
        model=server.model, prompt="Water boils at", max_tokens=4, temperature=0
    )
    assert reply.usage.completion_tokens <= 4


def test_closing_a_stream_ends_its_request(sdk: openai.OpenAI, server: Server) -> None:
    stream = sdk.completions.create(
        model=server.model,
        prompt=STORY,
        max_tokens=2000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    stream.close()

    def idle() -> bool:
        state = server.get("/status")[1]
        engine = state["engine"]
        return (
            state["gateway"]["open_requests"] == engine["running"] == engine["waiting"] == 0
            and engine["blocks_free"] == engine["blocks_total"]
        )

    wait_until(idle, message=lambda: server.get("/status")[1])


def test_models(sdk: openai.OpenAI, server: Server) -> None:
    assert [model.id for model in sdk.models.list()] == [server.model]
    assert sdk.models.retrieve(server.model).object == "model"


def test_errors(sdk: openai.OpenAI, server: Server) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        sdk.chat.completions.create(model="no-such-model", messages=CAPITAL)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        sdk.chat.completions.create(model=server.model, messages=CAPITAL, max_tokens=1_000_000)
    assert long.value.code == "context_length_exceeded"
    assert "1000000" in long.value.message
    with pytest.raises(openai.BadRequestError) as unknown:
        sdk.chat.completions.create(
            model=server.model, messages=CAPITAL, extra_body={"temprature": 1}
        )
    assert unknown.value.param == "temprature"
    with pytest.raises(openai.BadRequestError) as prompt:
        sdk.completions.create(model=server.model, prompt=[10_000_000], stream=True)
    assert "10000000" in prompt.value.message
