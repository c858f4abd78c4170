"""Stop strings that stay in the text, bad words, and prompts' log-probabilities on their way."""

from __future__ import annotations

import asyncio

import pytest

from penstock.client.ready_params import adjustments, bad_word_tokens
from penstock.errors import InvalidRequest
from penstock.protocol.common import LogitsAdjustments, TokenLogprobs
from penstock.protocol.to_frontend import Outputs, SequenceOutput
from penstock.request.sampling_params import SamplingParams
from penstock.text.tokenizer import Tokenizer
from testing.scripted_engine import LIMITS, ScriptedEngine, byte_tokenizer_json
from tests.shared.client.client_requests import collect, until

pytestmark = [pytest.mark.timeout(240)]


def told(*values: float) -> list[TokenLogprobs]:
    return [TokenLogprobs(value, (1,), (value,)) for value in values]


async def test_a_stop_string_is_part_of_the_text_where_asked_for(engine, client):
    params = SamplingParams(stop=["END"], max_tokens=50, include_stop_str_in_output=True)
    generation = await client.submit(list(b"x"), params, name="stop")
    [submit] = engine.submits
    engine.text(submit, "ab EN")
    engine.text(submit, "D and more")
    assert await collect(generation) == {0: ("ab END", list(b"ab END"), "stop", "END")}
    await until(lambda: engine.finishes)
    assert engine.finishes[0].at == 6


@pytest.mark.parametrize("included", [True, False])
async def test_a_stop_tokens_text_is_shown_where_asked_for(engine, client, included):
    params = SamplingParams(stop_token_ids=[ord("!")], include_stop_str_in_output=included)
    generation = await client.submit(list(b"x"), params, name="id")
    [submit] = engine.submits
    last = SequenceOutput(submit.request, 0, [ord("!")], finish="stop", stop_token=ord("!"))
    engine.text(submit, "well")
    engine.send(Outputs([last]))
    text = "well!" if included else "well"
    assert await collect(generation) == {0: (text, list(b"well!"), "stop", ord("!"))}


async def test_deltas_wait_for_the_prompts_logprobs(engine, client):
    params = SamplingParams(n=2, prompt_logprobs=1, max_tokens=8)
    generation = await client.submit(list(b"abcd"), params, name="told")
    [submit] = engine.submits
    assert submit.sampling.prompt_logprobs == 1
    engine.text(submit, "early", sequence=1)
    engine.send(Outputs([SequenceOutput(submit.request, 0, prompt_logprobs=told(-1.0, -2.0))]))
    first = asyncio.ensure_future(anext(generation))
    await asyncio.sleep(0.1)
    assert not first.done()
    engine.send(Outputs([SequenceOutput(submit.request, 0, prompt_logprobs=told(-3.0))]))
    assert [delta.text for delta in await first] == ["early"]
    assert generation.prompt_logprobs == [None, *told(-1.0, -2.0, -3.0)]
    generation.abort()


async def test_what_was_delivered_of_a_prompt_is_said_when_it_is_resumed(
    engine,
    client,
    endpoint,
):
    params = SamplingParams(prompt_logprobs=0, max_tokens=0)
    generation = await client.submit(list(b"abcd"), params, name="told")
    [submit] = engine.submits
    assert submit.prompt_delivered == 1
    engine.send(Outputs([SequenceOutput(submit.request, 0, prompt_logprobs=told(-1.0))]))
    await until(lambda: len(generation.prompt_logprobs) == 2)
    await engine.die()
    successor = ScriptedEngine(endpoint, boot=b"boot-two")
    try:
        await until(lambda: successor.submits)
        [again] = successor.submits
        assert again.prompt_delivered == 2
        rest = told(-2.0, -3.0)
        last = SequenceOutput(again.request, 0, finish="length", prompt_logprobs=rest)
        successor.send(Outputs([last]))
        assert await collect(generation) == {0: ("", [], "length", None)}
        assert generation.prompt_logprobs == [None, *told(-1.0, -2.0, -3.0)]
    finally:
        await successor.die()


def test_what_is_not_asked_for_is_not_sent() -> None:
    tokenizer = Tokenizer.from_bytes(byte_tokenizer_json(), add_bos=False, bos_token_id=None)
    assert adjustments(SamplingParams(logit_bias={1: 0.0}, bad_words=[]), tokenizer, LIMITS) is None
    wanted = SamplingParams(
        presence_penalty=1,
        logit_bias={7: -3},
        allowed_token_ids=[9, 7, 9],
        bad_words=["no", " no", "x"],
    )
    assert adjustments(wanted, tokenizer, LIMITS) == LogitsAdjustments(
        presence=1.0,
        bias={7: -3.0},
        allowed=(7, 9),
        bad_words=(tuple(b"no"), tuple(b" no"), tuple(b"x"), tuple(b" x")),
    )


def test_a_bad_word_without_tokens_is_refused() -> None:
    class Silent:
        def encode(self, text: str, **settings: bool) -> list[int]:
            return []

    with pytest.raises(InvalidRequest, match="'x' encodes to no token"):
        bad_word_tokens(["x"], Silent(), 10)  # type: ignore[arg-type]
