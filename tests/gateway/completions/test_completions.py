"""Shapes of /v1/completions against OpenAI's reference."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from penstock.request.sampling_params import SamplingParams
from tests.gateway import sse
from tests.gateway.byte_tokenizer import END
from tests.gateway.fake_engine import CONTEXT, HELLO, MODEL, FakeEngineClient, Step, say

NO_DETAILS = {
    "reasoning_tokens": 0,
    "audio_tokens": 0,
    "accepted_prediction_tokens": 0,
    "rejected_prediction_tokens": 0,
}
URL = "/v1/completions"
TEXT = f"{HELLO}0"
TOKENS = len(TEXT.encode()) + 1


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "Once", **fields}


async def test_a_completion_has_openais_fields(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    reply = (await http.post(URL, json=body())).json()
    assert reply.pop("id").startswith("cmpl-")
    assert reply.pop("created") > 0
    assert reply.pop("system_fingerprint").startswith("fp_")
    assert reply == {
        "object": "text_completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "text": TEXT,
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": 4,
            "completion_tokens": TOKENS,
            "total_tokens": 4 + TOKENS,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": NO_DETAILS,
        },
    }
    assert engine.submitted[0][1].max_tokens == 16


async def test_stream(http: httpx.AsyncClient) -> None:
    options = {"include_usage": True}
    response = await http.post(URL, json=body(stream=True, stream_options=options))
    *chunks, last = sse.parse(response.text)
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert all(chunk["usage"] is None for chunk in chunks)
    assert chunks[0]["choices"] == [
        {"index": 0, "text": "H", "logprobs": None, "finish_reason": None, "stop_reason": None}
    ]
    assert [c["choices"][0]["finish_reason"] for c in chunks][-2:] == [None, "stop"]
    assert sse.text_of(chunks) == TEXT
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == TOKENS


async def test_token_ids(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    reply = (await http.post(URL, json=body(prompt=[1, END, 3]))).json()
    assert reply["usage"]["prompt_tokens"] == 3
    assert engine.submitted[0][0] == [1, END, 3]


@pytest.mark.parametrize(("parse", "ids"), [(None, [97, END]), (True, [97, END]), (False, None)])
async def test_parse_special(
    http: httpx.AsyncClient, engine: FakeEngineClient, parse: bool | None, ids: list[int] | None
) -> None:
    await http.post(URL, json=body(prompt="a<|end|>", parse_special=parse))
    assert engine.submitted[0][0] == (ids or list(b"a<|end|>"))


def told_apart(prompt: list[int], params: SamplingParams) -> list[Step]:
    return list(say(bytes(prompt).decode().upper())(prompt, params))


@pytest.mark.parametrize("prompts", [["ab", "cd", "ef"], [[97, 98], [99, 100], [101, 102]]])
@pytest.mark.parametrize("stream", [False, True])
async def test_lists_of_prompts(
    http: httpx.AsyncClient, engine: FakeEngineClient, prompts: list[Any], stream: bool
) -> None:
    engine.script = told_apart
    response = await http.post(URL, json=body(prompt=prompts, n=2, stream=stream))
    expected = ["AB0", "AB1", "CD0", "CD1", "EF0", "EF1"]
    if stream:
        chunks = sse.parse(response.text)
        assert [sse.text_of(chunks, i) for i in range(6)] == expected
        ends = [c["choices"][0] for c in chunks if c["choices"][0]["finish_reason"]]
        assert sorted(end["index"] for end in ends) == list(range(6))
    else:
        reply = response.json()
        assert [choice["text"] for choice in reply["choices"]] == expected
        assert [choice["index"] for choice in reply["choices"]] == list(range(6))
        assert reply["usage"]["prompt_tokens"] == 6  # each prompt once
        assert reply["usage"]["completion_tokens"] == 6 * 4


async def test_default_max_tokens_fits_the_context(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    assert (await http.post(URL, json=body(prompt=["a", "b" * (CONTEXT - 5)]))).status_code == 200
    assert [params.max_tokens for _, params, _ in engine.submitted] == [16, 5]


async def test_a_completion_has_log_probabilities(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.script = say("aé")
    reply = (await http.post(URL, json=body(logprobs=2))).json()
    assert reply["choices"][0]["logprobs"] == {
        "tokens": ["a", "bytes:\\xc3", "bytes:\\xa9", "0", "<|end|>"],
        "token_logprobs": [-0.5] * 5,
        "top_logprobs": [
            {"a": -0.5, "b": -9999.0},
            {"bytes:\\xc3": -0.5, "bytes:\\xc4": -9999.0},
            {"bytes:\\xa9": -0.5, "bytes:\\xaa": -9999.0},
            {"0": -0.5, "1": -9999.0},
            {"<|end|>": -0.5},
        ],
        "text_offset": [0, 1, 2, 2, 3],
    }


async def test_streamed_logprobs_equal_whole(http: httpx.AsyncClient) -> None:
    whole = (await http.post(URL, json=body(logprobs=1))).json()["choices"][0]["logprobs"]
    chunks = sse.parse((await http.post(URL, json=body(logprobs=1, stream=True))).text)
    streamed: dict[str, list[Any]] = {key: [] for key in whole}
    for chunk in chunks:
        for key, values in (chunk["choices"][0]["logprobs"] or {}).items():
            streamed[key] += values
    assert streamed == whole


async def test_zero_logprobs_still_show_the_token(http: httpx.AsyncClient) -> None:
    reply = (await http.post(URL, json=body(logprobs=0))).json()
    assert reply["choices"][0]["logprobs"]["top_logprobs"][0] == {"H": -0.5}
