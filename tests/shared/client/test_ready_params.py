"""What is made of SamplingParams once for many prompts."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from penstock.client.generation_request import token_sampling
from penstock.client.ready_params import ReadyParams, ready_of_each, ready_params, without_ready
from penstock.errors import InvalidRequest
from penstock.protocol.common import LogitsAdjustments, SpeechRules, ThinkingBudget, TokenSampling
from penstock.request.sampling_params import SamplingParams
from penstock.request.structured_outputs import StructuredOutputs
from penstock.text.tokenizer import Tokenizer
from testing.scripted_engine import LIMITS, byte_tokenizer_json
from tests.shared.client.client_requests import until

TOKENIZER = Tokenizer.from_bytes(byte_tokenizer_json(), add_bos=False, bos_token_id=None)
EVERYTHING = SamplingParams(
    seed=5,
    logprobs=3,
    presence_penalty=0.1,
    frequency_penalty=-0.7,
    repetition_penalty=1.3,
    logit_bias={7: -3, 8: 0.1, 9: 0},
    allowed_token_ids=[9, 7, 255, 9],
    bad_words=["no", "\U0001f600"],
    structured_outputs=StructuredOutputs(json={"type": "object", "title": "\u00e9"}),
    logprob_token_ids=[3, 2, 3],
)
PARAMS = {
    "everything": EVERYTHING,
    "nothing": SamplingParams(),
    "only penalties": SamplingParams(presence_penalty=1e-9),
    "nothing is allowed": SamplingParams(allowed_token_ids=[0]),
    "a bias of nothing": SamplingParams(logit_bias={1: 0.0}),
    "a grammar": SamplingParams(structured_outputs=StructuredOutputs(json_object=True)),
}


def made(params: SamplingParams) -> ReadyParams:
    return ready_params(params, TOKENIZER, LIMITS)


@pytest.mark.parametrize("name", PARAMS)
def test_it_is_the_same_after_a_journey(name: str) -> None:
    ready = made(PARAMS[name])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(ready), type=ReadyParams) == ready


@pytest.mark.parametrize("name", PARAMS)
async def test_with_it_the_params_need_nothing_that_it_was_made_from(
    name: str, engine: Any, client: Any
) -> None:
    params = msgspec.structs.replace(PARAMS[name], seed=11)
    [ready], bare = await client.ready_of_each([params]), without_ready(params)
    waiting = [asyncio.create_task(client.submit(list(b"x"), params, name="one"))]
    await until(lambda: engine.submits)
    waiting.append(asyncio.create_task(client.submit(list(b"x"), bare, name="one", ready=ready)))
    await until(lambda: len(engine.submits) == 2)
    plain, stripped = (
        msgspec.msgpack.encode(msgspec.structs.replace(each, request=0, time_left_ms=None))
        for each in engine.submits
    )
    assert plain == stripped
    for each in waiting:
        each.cancel()


def sent(ready: ReadyParams, **prompt: Any) -> TokenSampling:
    """What an engine core reads of the sampling that is sent."""
    sampling = token_sampling(SamplingParams(), ready, 1, **prompt)
    return msgspec.msgpack.decode(msgspec.msgpack.encode(sampling), type=TokenSampling)


def test_what_depends_on_the_prompt_stands_beside_it() -> None:
    speech = SpeechRules(suppressed=(1, 2))
    thinking = ThinkingBudget(5, (1,), ((2,),), (2,), spent=3)
    own = sent(made(EVERYTHING)).adjustments
    assert own is not None
    assert own.bad_words
    assert own.bias == {7: -3.0, 8: 0.1}
    both = sent(made(EVERYTHING), speech=speech, thinking=thinking).adjustments
    assert both == msgspec.structs.replace(own, speech=speech, thinking=thinking)
    alone = sent(made(SamplingParams()), thinking=thinking).adjustments
    assert alone == LogitsAdjustments(thinking=thinking)
    assert sent(made(SamplingParams())).adjustments is None


def test_what_is_wrong_is_refused_as_ever() -> None:
    with pytest.raises(InvalidRequest, match="token id 256; this model's ids are 0 to 255"):
        made(SamplingParams(logprob_token_ids=[256]))
    with pytest.raises(InvalidRequest, match="at most 65536"):
        made(SamplingParams(structured_outputs=StructuredOutputs(regex="a" * 70_000)))


async def test_what_a_request_holds_counts_among_what_is_sent_in_a_turn(
    engine: Any, client: Any
) -> None:
    few, many = SamplingParams(), SamplingParams(allowed_token_ids=list(range(256)))
    light = await client.submit(list(b"x"), few, name="light")
    heavy = await client.submit(list(b"x"), many, name="heavy")
    assert light.carried_tokens == 1
    encoded = LogitsAdjustments(allowed=tuple(range(256)))
    assert heavy.carried_tokens == 1 + len(msgspec.msgpack.encode(encoded)) // 4
    light.abort()
    heavy.abort()


def test_params_with_other_max_tokens_are_those_that_would_be_made() -> None:
    other = EVERYTHING.with_max_tokens(3)
    assert other == msgspec.structs.replace(EVERYTHING, max_tokens=3)
    assert other.allowed_token_ids is EVERYTHING.allowed_token_ids
    assert EVERYTHING.max_tokens == SamplingParams().max_tokens
    assert EVERYTHING.with_max_tokens(None).max_tokens is None
    with pytest.raises(InvalidRequest, match="min_tokens is 3, more than max_tokens, 2"):
        SamplingParams(min_tokens=3).with_max_tokens(2)
    with pytest.raises(InvalidRequest, match="max_tokens must be a whole number"):
        EVERYTHING.with_max_tokens(-1)


def test_what_differs_in_what_is_read_is_made_by_itself() -> None:
    words = ["no"]
    alike = [SamplingParams(bad_words=words, seed=seed) for seed in range(3)]
    others = [SamplingParams(bad_words=words, presence_penalty=1.0), SamplingParams()]
    made_of = ready_of_each([*alike, *others], TOKENIZER, LIMITS)
    assert made_of == [made(each) for each in (*alike, *others)]
    assert made_of[0] is made_of[1] is made_of[2]
