"""Shapes of /v1/chat/completions against OpenAI's reference."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest

from penstock.model.prepared_model import GenerationDefaults
from penstock.request.sampling_params import RepetitionDetectionParams
from tests.gateway import sse
from tests.gateway.fake_engine import CONTEXT, HELLO, MODEL, FakeEngineClient, say, welcome

NO_DETAILS = {
    "reasoning_tokens": 0,
    "audio_tokens": 0,
    "accepted_prediction_tokens": 0,
    "rejected_prediction_tokens": 0,
}
URL = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "Hi"}]
PROMPT = "user: Hi\nassistant:"
TEXT = f"{HELLO}0"
TOKENS = len(TEXT.encode()) + 1  # and the end token


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": QUESTION, **fields}


async def test_a_chat_completion_has_openais_fields(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    response = await http.post(URL, json=body())
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    reply = response.json()
    assert reply.pop("id").startswith("chatcmpl-")
    assert abs(reply.pop("created") - time.time()) < 10
    assert reply.pop("system_fingerprint").startswith("fp_")
    assert reply == {
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": TEXT, "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": len(PROMPT),
            "completion_tokens": TOKENS,
            "total_tokens": len(PROMPT) + TOKENS,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": NO_DETAILS,
        },
    }
    prompt, params, _ = engine.submitted[0]
    assert bytes(prompt).decode() == PROMPT
    assert params.max_tokens == CONTEXT - len(PROMPT)  # what the context allows


async def test_stream(http: httpx.AsyncClient) -> None:
    response = await http.post(URL, json=body(stream=True))
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = sse.parse(response.text)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0] == {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    assert choices[1] == {
        "index": 0,
        "delta": {"content": "H"},
        "logprobs": None,
        "finish_reason": None,
    }
    assert choices[-1] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
    }
    assert sse.text_of(chunks) == TEXT
    assert all(choice["finish_reason"] is None for choice in choices[:-1])


async def test_include_usage(http: httpx.AsyncClient) -> None:
    options = {"include_usage": True}
    response = await http.post(URL, json=body(stream=True, stream_options=options))
    *chunks, last = sse.parse(response.text)
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": len(PROMPT),
        "completion_tokens": TOKENS,
        "total_tokens": len(PROMPT) + TOKENS,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": NO_DETAILS,
    }


async def test_continuous_usage(http: httpx.AsyncClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    response = await http.post(URL, json=body(stream=True, stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in sse.parse(response.text)]
    assert counts == sorted(counts)
    assert (counts[0], counts[1], counts[-1]) == (0, 1, TOKENS)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("logprobs", [False, True])
async def test_streamed_equals_whole(http: httpx.AsyncClient, n: int, logprobs: bool) -> None:
    fields = {"n": n} | ({"logprobs": True, "top_logprobs": 2} if logprobs else {})
    whole = (await http.post(URL, json=body(**fields))).json()
    chunks = sse.parse((await http.post(URL, json=body(stream=True, **fields))).text)
    assert len(whole["choices"]) == n
    for index, choice in enumerate(whole["choices"]):
        assert choice["index"] == index
        assert choice["message"]["content"] == f"{HELLO}{index}"
        assert sse.text_of(chunks, index) == choice["message"]["content"]
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["stop"]
        assert mine[0]["delta"]["role"] == "assistant"
        assert sum("role" in c["delta"] for c in mine) == 1
        if logprobs:
            streamed = [e for c in mine if c["logprobs"] for e in c["logprobs"]["content"]]
            assert streamed == choice["logprobs"]["content"]
            assert len(streamed) == TOKENS
    assert whole["usage"]["completion_tokens"] == n * TOKENS


async def test_a_chat_completion_has_log_probabilities(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.script = say("é")
    reply = (await http.post(URL, json=body(logprobs=True, top_logprobs=2))).json()
    content = reply["choices"][0]["logprobs"]["content"]
    # "é" is two tokens, each half a character.
    assert content[0] == {
        "token": "\\xc3",
        "logprob": -0.5,
        "bytes": [0xC3],
        "top_logprobs": [
            {"token": "\\xc3", "logprob": -0.5, "bytes": [0xC3]},
            {"token": "\\xc4", "logprob": -9999.0, "bytes": [0xC4]},
        ],
    }
    assert content[2]["token"] == "0"
    assert content[2]["bytes"] == [48]
    assert bytes(b for entry in content[:3] for b in entry["bytes"]).decode() == "é0"


async def test_logprobs_without_alternatives(http: httpx.AsyncClient) -> None:
    reply = (await http.post(URL, json=body(logprobs=True))).json()
    assert all(e["top_logprobs"] == [] for e in reply["choices"][0]["logprobs"]["content"])


@pytest.mark.parametrize(
    ("finish", "reason"), [("length", None), ("stop", "###"), ("stop", 42), ("stop", None)]
)
async def test_finish_and_stop_reason(
    http: httpx.AsyncClient, engine: FakeEngineClient, finish: str, reason: int | str | None
) -> None:
    engine.script = say("x", finish=finish, stop_reason=reason)
    choice = (await http.post(URL, json=body())).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == (finish, reason)
    last = sse.parse((await http.post(URL, json=body(stream=True))).text)[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == (finish, reason)


async def test_sampling_fields_reach_the_engine(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    fields = {
        "n": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "seed": -1,
        "stop": ["a", "b"],
        "stop_token_ids": [7],
        "max_tokens": 20,
        "min_tokens": 3,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 4,
        "skip_special_tokens": False,
        "repetition_detection": {"max_pattern_size": 64, "min_count": 5},
    }
    assert (await http.post(URL, json=body(**fields))).status_code == 200
    params = engine.submitted[0][1]
    detection = RepetitionDetectionParams(max_pattern_size=64, min_count=5)
    expected = fields | {"seed": 2**64 - 1, "logprobs": 4, "repetition_detection": detection}
    del expected["top_logprobs"]
    assert {name: getattr(params, name) for name in expected} == expected


async def test_defaults_of_the_checkpoint(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    own = GenerationDefaults(temperature=0.2, top_p=0.8, top_k=20, min_p=0.1)
    engine.welcome = welcome(generation=own)
    await http.post(URL, json=body())
    await http.post(URL, json=body(temperature=0, top_k=0))
    silent, spoken = (params for _, params, _ in engine.submitted)
    assert (silent.temperature, silent.top_p, silent.top_k, silent.min_p) == (0.2, 0.8, 20, 0.1)
    assert (spoken.temperature, spoken.top_p, spoken.top_k) == (0, 0.8, 0)


async def test_length_and_repetition_of_the_generation_config(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.welcome = welcome(
        generation=GenerationDefaults(repetition_penalty=1.1, max_new_tokens=7)
    )
    await http.post(URL, json=body())
    await http.post(URL, json=body(max_tokens=9, repetition_penalty=1.0))
    await http.post("/v1/completions", json={"model": MODEL, "prompt": "a"})
    found = [(p.max_tokens, p.repetition_penalty) for _, p, _ in engine.submitted]
    assert found == [(7, 1.1), (9, 1.0), (7, 1.1)]


async def test_openai_defaults(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    await http.post(URL, json=body())
    params = engine.submitted[0][1]
    assert (params.n, params.temperature, params.top_p, params.top_k) == (1, 1.0, 1.0, 0)
    assert params.seed is None
    assert params.logprobs is None


async def test_messages_reach_the_template(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": "", "refusal": None, "tool_calls": None},
        {
            "role": "user",
            "content": [{"type": "text", "text": "b<|end|>"}, {"type": "text", "text": "c"}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "42"},
    ]
    kwargs = {"enable_thinking": False}
    request = body(messages=messages, add_generation_prompt=False, chat_template_kwargs=kwargs)
    assert (await http.post(URL, json=request)).status_code == 200
    given, options = engine.template.calls[0]
    assert given == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a", "name": "ann"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "b<|end|>\nc"},
        {"role": "tool", "content": "42", "tool_call_id": "t1"},
    ]
    assert options == {"add_generation_prompt": False, "enable_thinking": False}


@pytest.mark.parametrize(
    "thinking", ["Hm. Yes.", [{"type": "text", "text": "Hm. "}, {"text": "Yes."}]]
)
async def test_thoughts_may_be_parts_of_an_answer(
    http: httpx.AsyncClient, engine: FakeEngineClient, thinking: Any
) -> None:
    """Mistral's API writes thoughts as parts of the content."""
    parts = [{"type": "thinking", "thinking": thinking}, {"type": "text", "text": "It rains."}]
    asked = {"role": "user", "content": "Well?"}
    messages = [asked, {"role": "assistant", "content": parts}, asked]
    assert (await http.post(URL, json=body(messages=messages))).status_code == 200
    given, _ = engine.template.calls[0]
    said = {"role": "assistant", "content": "It rains.", "reasoning_content": "Hm. Yes."}
    assert given == [asked, said, asked]
    for message, at in (
        ({"role": "user", "content": parts}, "messages[0].content[0].type"),
        (
            {"role": "assistant", "content": [parts[1], {"type": "thinking", "thinking": [7]}]},
            "messages[0].content[1].thinking",
        ),
    ):
        refused = await http.post(URL, json=body(messages=[message]))
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, at)


@pytest.mark.parametrize("length", [600, 40_000, 100_000])
async def test_what_is_too_long_is_the_field_that_holds_it(
    http: httpx.AsyncClient, length: int
) -> None:
    long = "x" * length
    given = {
        "/v1/completions": ({"prompt": long}, "prompt"),
        URL: ({"messages": [{"role": "user", "content": long}]}, "messages"),
        "/v1/responses": ({"input": long}, "input"),
        "/tokenize": ({"messages": [{"role": "user", "content": long}]}, "messages"),
    }
    for path, (fields, param) in given.items():
        response = await http.post(path, json=fields)
        if path == "/tokenize" and length == 600:
            assert response.status_code == 200
            continue
        assert response.status_code == 400
        error = response.json()["error"]
        assert (path, error["param"]) == (path, param)
        assert error["code"] == "context_length_exceeded"


async def test_ids_and_request_ids(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    response = await http.post(URL, json=body(), headers={"x-request-id": "abc-1"})
    assert response.headers["x-request-id"] == "abc-1"
    assert engine.submitted[0][2] == "abc-1"
    reply = (await http.post(URL, json=body(request_id="mine"))).json()
    assert reply["id"] == "chatcmpl-mine"
    first, second = [(await http.post(URL, json=body())).json()["id"] for _ in range(2)]
    assert first != second


async def test_model_may_be_left_out(http: httpx.AsyncClient) -> None:
    reply = (await http.post(URL, json={"messages": QUESTION})).json()
    assert reply["model"] == MODEL


async def test_a_body_of_another_type_is_refused_with_the_header_to_send(
    http: httpx.AsyncClient,
) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}  # what curl -d sends
    response = await http.post(URL, content=json.dumps(body()), headers=headers)
    assert response.status_code == 415
    assert "-H 'content-type: application/json'" in response.json()["error"]["message"]
    assert (await http.post(URL, content=json.dumps(body()))).status_code == 200
