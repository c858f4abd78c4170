"""What clients of Text Generation Inference send: /generate, /generate_stream and POST /."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.config.settings import GatewayConfig
from penstock.request.structured_outputs import StructuredOutputs
from penstock_gateway.app import create_app
from tests.gateway.byte_tokenizer import END
from tests.gateway.fake_engine import CONTEXT, HELLO, FakeEngineClient, say
from tests.gateway.keyring import ALICE, bearer, key, write

TEXT = f"{HELLO}0"
TOKENS = [*TEXT.encode(), END]


async def _asked(http: httpx.AsyncClient, path: str = "/generate", **body: Any) -> Any:
    reply = await http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def _events(text: str) -> list[Any]:
    lines = [line for line in text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_a_prompt_is_continued_without_a_template(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    assert await _asked(http, inputs="ab") == {"generated_text": TEXT}
    prompt, params, _ = engine.submitted[-1]
    assert (prompt, params.max_tokens, params.temperature) == ([*b"ab"], 100, 0)
    assert await _asked(http, "/", inputs="ab", stream=False) == [{"generated_text": TEXT}]
    full = await _asked(http, inputs="ab", parameters={"return_full_text": True})
    assert full["generated_text"] == f"ab{TEXT}"


async def test_parameters_arrive(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    parameters = {
        "max_new_tokens": 5,
        "do_sample": True,
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.9,
        "seed": 7,
        "stop": ["x"],
        "repetition_penalty": 1.5,
        "frequency_penalty": 0.25,
        "truncate": 2,
        "watermark": False,
        "typical_p": None,
        "grammar": {"type": "json", "value": {"const": 42}},
    }
    await _asked(http, inputs="abc", parameters=parameters)
    prompt, params, _ = engine.submitted[-1]
    assert (prompt, params.max_tokens, params.temperature) == ([*b"bc"], 5, 0.5)
    assert (params.top_k, params.top_p, params.seed, params.stop) == (3, 0.9, 7, ["x"])
    assert (params.repetition_penalty, params.frequency_penalty) == (1.5, 0.25)
    assert params.include_stop_str_in_output
    assert params.structured_outputs == StructuredOutputs(json={"const": 42})
    for grammar in (
        {"type": "regex", "value": "a+"},
        {"type": "json_schema", "value": {"name": "n", "schema": {"type": "null"}}},
    ):
        await _asked(http, inputs="a", parameters={"grammar": grammar})
    wanted = [StructuredOutputs(regex="a+"), StructuredOutputs(json={"type": "null"})]
    assert [each[1].structured_outputs for each in engine.submitted[-2:]] == wanted


@pytest.mark.parametrize(
    ("parameters", "drawn"),
    [({}, 0), ({"temperature": 1.0}, 0), ({"do_sample": True}, 1), ({"top_p": 0.5}, 1)],
)
async def test_tokens_are_drawn_where_something_says_how(
    http: httpx.AsyncClient, engine: FakeEngineClient, parameters: dict[str, Any], drawn: float
) -> None:
    await _asked(http, inputs="a", parameters=parameters)
    assert engine.submitted[-1][1].temperature == drawn


async def test_details_have_each_token(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    told = await _asked(http, inputs="a", parameters={"details": True, "top_n_tokens": 2})
    details = told["details"]
    assert details["finish_reason"] == "eos_token"
    assert details["generated_tokens"] == len(details["tokens"])
    assert [each["id"] for each in details["tokens"]] == TOKENS
    assert [each["text"] for each in details["tokens"][:2]] == ["H", "\\xc3"]
    assert [each["special"] for each in details["tokens"][-2:]] == [False, True]
    assert {each["logprob"] for each in details["tokens"]} == {-0.5}
    assert [len(each) for each in details["top_tokens"][:-1]] == [2] * (len(TOKENS) - 1)
    engine.script = say("ab", stop_reason="b")
    told = await _asked(http, inputs="a", parameters={"details": True})
    assert told["details"]["finish_reason"] == "stop_sequence"
    assert "top_tokens" not in told["details"]
    engine.script = say("ab", finish="length")
    told = await _asked(http, inputs="a", parameters={"details": True, "max_new_tokens": 2})
    assert told["details"]["finish_reason"] == "length"


@pytest.mark.parametrize("path", ["/generate_stream", "/"])
async def test_a_stream_has_an_event_for_each_token(http: httpx.AsyncClient, path: str) -> None:
    body = {"inputs": "a", "stream": True, "parameters": {"return_full_text": True}}
    reply = await http.post(path, json=body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = _events(reply.text)
    assert [each["index"] for each in events] == list(range(1, len(events) + 1))
    assert [each["token"]["id"] for each in events] == TOKENS
    assert "".join(each["token"]["text"] for each in events) == TEXT
    assert {each["generated_text"] for each in events[:-1]} == {None}
    assert events[-1]["generated_text"] == f"a{TEXT}"
    assert events[-1]["details"] == {
        "finish_reason": "eos_token",
        "generated_tokens": len(events),
        "seed": None,
        "input_length": 1,
    }


async def test_characters_of_several_tokens_are_whole(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.script = say("aß→b", finish="length")
    events = _events((await http.post("/generate_stream", json={"inputs": "a"})).text)
    assert "".join(each["token"]["text"] for each in events) == "aß→b0"
    assert events[-1]["generated_text"] == "aß→b0"
    assert events[-1]["details"]["generated_tokens"] == len("aß→b0".encode())


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"inputs": ""}, "inputs is empty"),
        ({}, "inputs is missing"),
        ({"inputs": "a", "parameters": {"max_new_tokens": -2}}, "parameters.max_new_tokens"),
        ({"inputs": "a", "parameters": {"max_new_tokens": CONTEXT}}, "parameters.max_new_tokens"),
        ({"inputs": "a", "parameters": {"truncate": 0}}, "parameters.truncate"),
        ({"inputs": "a", "parameters": {"temperature": -1}}, "parameters.temperature"),
        ({"inputs": "a", "parameters": {"typical_p": 0.5}}, "parameters.typical_p is 0.5"),
        ({"inputs": "a", "parameters": {"top_n_tokens": 99}}, "parameters.top_n_tokens"),
        (
            {"inputs": "a", "parameters": {"grammar": {"type": "regex", "value": {}}}},
            "parameters.grammar.value",
        ),
        ({"inputs": "a", "model": "b", "parameters": {"adapter_id": "c"}}, "adapter_id"),
    ],
)
async def test_wrong_requests_are_told_in_their_own_words(
    http: httpx.AsyncClient, body: dict[str, Any], said: str
) -> None:
    reply = await http.post("/generate", json=body)
    assert reply.status_code == 400
    assert said in reply.json()["error"]
    assert reply.json()["error_type"] == "validation"


async def test_what_is_unknown_is_skipped_as_there(http: httpx.AsyncClient) -> None:
    parameters = {"num_return_sequences": 1}
    told = await _asked(http, "/", inputs="a", parameters=parameters, options={"use_cache": True})
    assert told == [{"generated_text": TEXT}]


async def test_posting_to_the_page_needs_what_other_requests_need(tmp_path: Path) -> None:
    """The page itself is open to everybody; what is posted to its path is not."""

    def http_of(config: GatewayConfig) -> httpx.AsyncClient:
        app = create_app(FakeEngineClient(), config)  # type: ignore[arg-type]
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")

    body, other = {"inputs": "a"}, {"host": "other.example"}
    async with http_of(GatewayConfig()) as http:
        assert (await http.post("/", json=body, headers=other)).status_code == 403
        page = {"origin": "http://other.example"}
        assert (await http.post("/", json=body, headers=page)).status_code == 403
        assert (await http.get("/", headers=other)).status_code == 200
    keys = write(tmp_path / "keys.json", key(ALICE))
    async with http_of(GatewayConfig(api_keys=keys)) as http:
        assert (await http.post("/", json=body)).status_code == 401
        assert (await http.get("/")).status_code == 200
        assert (await http.post("/", json=body, headers=bearer(ALICE))).status_code == 200
