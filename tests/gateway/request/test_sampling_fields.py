"""Fields that say how tokens are chosen: they reach the engine, or are refused by name."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from penstock import SamplingParams
from tests.gateway.byte_tokenizer import END, VOCABULARY
from tests.gateway.fake_engine import CONTEXT, FakeEngineClient
from tests.gateway.request.test_request_fields import BODIES, CHAT, TEXT, refusal

FIELDS = {
    "presence_penalty": 0.5,
    "frequency_penalty": -1.5,
    "repetition_penalty": 1.1,
    "logit_bias": {"5": 10, "256": -100},
    "allowed_token_ids": [1, END],
    "bad_words": ["no", "never"],
    "include_stop_str_in_output": True,
    "prompt_logprobs": 3,
    "thinking_token_budget": 9,
    "stop": [f"stop {number}" for number in range(16)],
}
EXPECTED = FIELDS | {"logit_bias": {5: 10.0, 256: -100.0}}


@pytest.mark.parametrize("url", [CHAT, TEXT])
async def test_they_reach_the_engine(
    http: httpx.AsyncClient, engine: FakeEngineClient, url: str
) -> None:
    for field, value in FIELDS.items():
        response = await http.post(url, json=BODIES[url] | {field: value})
        assert response.status_code == 200, response.text
        _, params, _ = engine.submitted[-1]
        assert getattr(params, field) == EXPECTED[field]
        others = set(SamplingParams.__struct_fields__) - {field}
        await http.post(url, json=BODIES[url])
        _, plain, _ = engine.submitted[-1]
        assert all(getattr(params, name) == getattr(plain, name) for name in others)


@pytest.mark.parametrize("url", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"presence_penalty": 2.1}, "presence_penalty", "[-2, 2], not 2.1"),
        ({"frequency_penalty": -3}, "frequency_penalty", "[-2, 2], not -3"),
        ({"repetition_penalty": 0}, "repetition_penalty", "(0, 100], not 0"),
        ({"logit_bias": {"x": 1}}, "logit_bias", '"x"'),
        ({"logit_bias": {"-1": 1}}, "logit_bias", f"0 to {VOCABULARY - 1}"),
        ({"logit_bias": {str(VOCABULARY): 1}}, "logit_bias", f'"{VOCABULARY}"'),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "token ids"),
        ({"logit_bias": {"²": 1}}, "logit_bias", "token ids"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "[-100, 100], not 101"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "1 to"),
        ({"allowed_token_ids": [VOCABULARY]}, "allowed_token_ids", f"{VOCABULARY - 1}"),
        ({"bad_words": [""]}, "bad_words", "1 to 256 characters"),
        ({"logprob_token_ids": [5]}, "logprob_token_ids", "needs logprobs"),
        ({"bad_words": ["x"] * 257}, "bad_words", "at most 256"),
        ({"stop": ["x"] * 17}, "stop", "at most 16"),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "[0, 20], not 21"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "[0, 20], not -1"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "stream"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", f"[1, {CONTEXT}], not 0"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "not -2"),
    ],
)
async def test_out_of_range(
    http: httpx.AsyncClient, url: str, fields: dict[str, Any], param: str, says: str
) -> None:
    error = await refusal(http, url, fields)
    assert error["param"] == param
    assert says in error["message"]


@pytest.mark.parametrize("url", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"logprob_token_ids": [VOCABULARY]}, f"this model's ids are 0 to {VOCABULARY - 1}"),
        ({"logprob_token_ids": [1] * 21}, "at most 20 token ids"),
        ({"logprob_token_ids": [1], "use_beam_search": True}, "can't be combined with use_beam"),
    ],
)
async def test_listed_ids_are_checked(
    http: httpx.AsyncClient,
    engine: FakeEngineClient,
    url: str,
    fields: dict[str, Any],
    says: str,
) -> None:
    logprobs = {"logprobs": True if url == CHAT else 1}
    error = await refusal(http, url, {**logprobs, **fields})
    assert error["param"] == "logprob_token_ids"
    assert says in error["message"]
    told = {**BODIES[url], **logprobs, "logprob_token_ids": [5, 7]}
    assert (await http.post(url, json=told)).status_code == 200
    _, params, _ = engine.submitted[-1]
    assert (params.logprob_token_ids, params.num_logprobs) == ([5, 7], 0)


@pytest.mark.parametrize(("keep", "left"), [(2, [8, 9]), (400, [*range(10)]), (-1, [*range(10)])])
async def test_a_truncated_prompt_keeps_its_end(
    http: httpx.AsyncClient, engine: FakeEngineClient, keep: int, left: list[int]
) -> None:
    body = {"prompt": list(range(10)), "truncate_prompt_tokens": keep}
    reply = (await http.post(TEXT, json=body)).json()
    assert engine.submitted[0][0] == left
    assert reply["usage"]["prompt_tokens"] == len(left)


@pytest.mark.parametrize("prompt", [list(b"abcdef"), "abcdef", "abcdef" + "x" * 30_000])
@pytest.mark.parametrize(("side", "left"), [("right", b"abcd"), ("left", None)])
async def test_the_side_of_a_prompt_that_is_truncated(
    http: httpx.AsyncClient,
    engine: FakeEngineClient,
    prompt: str | list[int],
    side: str,
    left: bytes | None,
) -> None:
    body = {"prompt": prompt, "truncate_prompt_tokens": 4, "truncation_side": side}
    assert (await http.post(TEXT, json=body)).status_code == 200
    whole = prompt.encode() if isinstance(prompt, str) else bytes(prompt)
    assert bytes(engine.submitted[0][0]) == (left or whole[-4:])


async def test_a_chat_that_is_truncated_on_the_right_keeps_its_beginning(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    await http.post(CHAT, json=BODIES[CHAT])
    cut = {"truncate_prompt_tokens": 4, "truncation_side": "right"}
    assert (await http.post(CHAT, json=BODIES[CHAT] | cut)).status_code == 200
    assert engine.submitted[1][0] == engine.submitted[0][0][:4]


@pytest.mark.parametrize("url", [CHAT, TEXT])
async def test_a_prompt_has_two_sides(http: httpx.AsyncClient, url: str) -> None:
    error = await refusal(http, url, {"truncate_prompt_tokens": 4, "truncation_side": "middle"})
    assert error["param"] == "truncation_side"
    assert "left, right" in error["message"]


async def test_a_prompt_is_truncated_to_the_room_that_max_tokens_leaves(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    body = {"prompt": [7] * 600, "truncate_prompt_tokens": -1, "max_tokens": 100}
    assert (await http.post(TEXT, json=body)).status_code == 200
    prompt, params, _ = engine.submitted[0]
    assert (len(prompt), params.max_tokens) == (CONTEXT - 100, 100)
