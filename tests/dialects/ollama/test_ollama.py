"""Ollama's API: shapes by its own Python client, lines in their order, conversations as a template
sees them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import httpx
import msgspec
import ollama
import pytest

from penstock.client import SequenceDelta
from penstock.config.settings import GatewayConfig
from penstock.errors import InvalidRequest, RequestFailed
from penstock.protocol.common import AdapterFile, NamedAdapter
from penstock.protocol.to_frontend import WeightFacts
from penstock.request.sampling_params import RepetitionDetectionParams, SamplingParams
from penstock.request.structured_outputs import PARAM
from penstock_gateway.app import create_app
from tests.gateway.byte_tokenizer import END
from tests.gateway.fake_engine import (
    CONTEXT,
    HELLO,
    MODEL,
    FakeEngineClient,
    Script,
    Step,
    welcome,
)
from tests.gateway.live_gateway import LiveGateway

pytestmark = pytest.mark.timeout(300)

CHAT, GENERATE = "/api/chat", "/api/generate"
ANSWER = f"{HELLO}0"
ARGUMENTS = '{"city": "Zürich 👋"}'
HERMES = (
    f'Let me look.<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def said(text: str, *, finish: str = "stop") -> Script:
    """A script: `text` in pieces of random lengths."""
    dice = random.Random(len(text))
    cuts = [0, *sorted(dice.sample(range(1, len(text)), len(text) // 3)), len(text)]

    def script(prompt: list[int], params: SamplingParams) -> Iterable[Step]:
        for start, end in pairwise(cuts):
            yield [SequenceDelta(index=0, text=text[start:end], token_ids=[65] * (end - start))]
        yield [SequenceDelta(index=0, token_ids=[END], finish_reason=finish)]  # type: ignore[arg-type]

    return script


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]} | fields


async def whole(http: httpx.AsyncClient, path: str = CHAT, **fields: Any) -> dict[str, Any]:
    body = asked(**fields) if path == CHAT else {"model": MODEL, **fields}
    response = await http.post(path, json=body | {"stream": False})
    assert response.status_code == 200, response.text
    kind = ollama.ChatResponse if path == CHAT else ollama.GenerateResponse
    kind.model_validate(response.json(), strict=True)
    return response.json()


async def lines_of(http: httpx.AsyncClient, path: str = CHAT, **fields: Any) -> list[Any]:
    body = asked(**fields) if path == CHAT else {"model": MODEL, **fields}
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.text.endswith("\n")
    return [json.loads(line) for line in response.text.splitlines()]


def client_of(engine: FakeEngineClient, **config: Any) -> httpx.AsyncClient:
    app = create_app(engine, GatewayConfig(**config))  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")


async def test_whole_chat(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    options = {"num_predict": 20, "temperature": 0.5, "repeat_penalty": 1.1, "num_ctx": 4096}
    reply = await whole(http, options=options, keep_alive="5m", truncate=True, shift=False)
    assert reply["message"] == {"role": "assistant", "content": ANSWER}
    assert (reply["done"], reply["done_reason"], reply["model"]) == (True, "stop", MODEL)
    assert reply["prompt_eval_count"] == len(b"user: Hi\nassistant:")
    assert reply["eval_count"] == len(ANSWER.encode()) + 1
    assert reply["total_duration"] >= reply["eval_duration"] > 0  # Clients divide by it.
    _, params, _ = engine.submitted[0]
    assert (params.max_tokens, params.temperature) == (20, 0.5)
    assert params.repetition_penalty == 1.1


@pytest.mark.parametrize("raw", [False, True])
async def test_a_loop_may_end_the_answer(
    http: httpx.AsyncClient, engine: FakeEngineClient, raw: bool
) -> None:
    engine.script = said("again again again", finish="repetition")
    loop = {"max_pattern_size": 64, "min_pattern_size": 2, "min_count": 5}
    fields = {"prompt": "Hi", "raw": raw, "options": {"repetition_detection": loop}}
    reply = await whole(http, GENERATE, **fields)
    assert reply["done_reason"] == "repetition"
    assert (await lines_of(http, GENERATE, **fields))[-1]["done_reason"] == "repetition"
    for _, params, _ in engine.submitted:
        assert params.repetition_detection == RepetitionDetectionParams(**loop)
    loop["min_count"] = 1
    response = await http.post(GENERATE, json={"model": MODEL, **fields})
    assert response.status_code == 400
    assert response.json()["error"].startswith("options.repetition_detection.min_count must be")


@pytest.mark.parametrize("path", [CHAT, GENERATE])
async def test_an_answer_is_streamed_unless_that_is_turned_off(
    http: httpx.AsyncClient, path: str
) -> None:
    fields = {} if path == CHAT else {"prompt": "Hi", "system": "Be brief."}
    *lines, last = await lines_of(http, path, **fields)
    reply = await whole(http, path, **fields)
    if path == CHAT:
        text = "".join(line["message"]["content"] for line in lines)
        assert text == reply["message"]["content"]
    else:
        assert "".join(line["response"] for line in lines) == reply["response"] == ANSWER
    assert not any(line["done"] for line in lines)
    assert len(await lines_of(http, path, stream=None, **fields)) == len(lines) + 1
    for name in ("done", "done_reason", "eval_count", "prompt_eval_count"):
        assert last[name] == reply[name]


async def test_a_raw_prompt_is_the_whole_input(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    await whole(http, GENERATE, prompt="Once upon", raw=True)
    await whole(http, GENERATE, prompt="Hi", system="Be brief.")
    assert bytes(engine.submitted[0][0]) == b"Once upon"
    assert bytes(engine.submitted[1][0]) == b"system: Be brief.\nuser: Hi\nassistant:"


@pytest.mark.parametrize("wanted", [None, -1, -2, 100_000])
async def test_as_many_tokens_as_there_is_room_for(
    http: httpx.AsyncClient, engine: FakeEngineClient, wanted: int | None
) -> None:
    await whole(http, options={"num_predict": wanted})
    [(prompt, params, _)] = engine.submitted
    assert params.max_tokens == CONTEXT - len(prompt)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        *((CHAT, {"messages": []}), (GENERATE, {}), (GENERATE, {"prompt": "", "keep_alive": "5m"})),
        *((CHAT, {"messages": [], "keep_alive": never}) for never in (0, "0s")),
        *((GENERATE, {"keep_alive": never}) for never in (0, "0s")),
    ],
)
async def test_who_asks_for_nothing_has_the_model_loaded(
    http: httpx.AsyncClient, engine: FakeEngineClient, path: str, fields: dict[str, Any]
) -> None:
    [line] = await lines_of(http, path, **fields)
    reply = await whole(http, path, **fields)
    for told in (line, reply):
        reason = "unload" if fields.get("keep_alive") in (0, "0s") else "load"
        assert (told["done"], told["done_reason"], told["model"]) == (True, reason, MODEL)
    assert not engine.submitted
    missing = await http.post(path, json={**fields, "model": "llama3.2"})
    assert missing.status_code == 404
    engine.connected = False
    assert (await http.post(path, json=fields)).status_code == 503


async def test_adapters_are_listed_and_asked_for(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    engine.adapters.learn([NamedAdapter("sql", AdapterFile("a" * 64, "/sql"), 0, 4, "some/model")])
    for path in ("/api/tags", "/api/ps"):
        found = {each["name"]: each["digest"] for each in (await http.get(path)).json()["models"]}
        assert list(found) == [f"{MODEL}:latest", "sql:latest"]
        assert found["sql:latest"] == "a" * 64
    assert (await whole(http, model="sql:latest"))["model"] == "sql"
    assert engine.terms[-1].adapter == AdapterFile("a" * 64, "/sql")


async def test_calls_and_their_results(engine: FakeEngineClient) -> None:
    engine.script = said(HERMES)
    async with client_of(engine, enable_auto_tool_choice=True, tool_call_parser="hermes") as http:
        reply = await whole(http, tools=[WEATHER])
        assert reply["message"]["content"] == "Let me look."
        [call] = reply["message"]["tool_calls"]
        assert call["function"] == {"name": "get_weather", "arguments": json.loads(ARGUMENTS)}
        lines = await lines_of(http, tools=[WEATHER])
        [told] = [line["message"] for line in lines if "tool_calls" in line["message"]]
        assert told["tool_calls"][0]["function"] == call["function"]
        history = [
            {"role": "user", "content": "Hi"},
            reply["message"],
            {"role": "tool", "content": "Rain.", "tool_name": "get_weather"},
        ]
        await whole(http, tools=[WEATHER], messages=history)
    seen, variables = engine.template.calls[-1]
    assert [message["role"] for message in seen] == ["user", "assistant", "tool"]
    assert seen[1]["tool_calls"][0]["function"]["arguments"] == json.loads(ARGUMENTS)
    assert (seen[2]["name"], seen[2]["content"]) == ("get_weather", "Rain.")
    assert variables["tools"][0]["function"]["name"] == "get_weather"


async def test_thoughts(engine: FakeEngineClient) -> None:
    engine.script = said("<think>A river.</think>Seine")
    async with client_of(engine, reasoning_parser="deepseek_r1") as http:
        reply = await whole(http, think=True)
        assert reply["message"]["thinking"].strip() == "A river."
        assert reply["message"]["content"].strip() == "Seine"
        lines = await lines_of(http, think="high")
        thoughts = "".join(line["message"].get("thinking", "") for line in lines)
        assert thoughts.strip() == "A river."
    assert engine.template.calls[0][1]["enable_thinking"] is True
    assert engine.template.calls[1][1]["reasoning_effort"] == "high"


async def test_the_answer_follows_a_format(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    await whole(http, format="json")
    await whole(http, format={"type": "object", "properties": {"a": {"type": "integer"}}})
    await whole(http, format="")
    formats = [params.structured_outputs for _, params, _ in engine.submitted]
    assert [wanted is None for wanted in formats] == [False, False, True]


@pytest.mark.parametrize("raw", [True, False, None])
async def test_log_probabilities_are_those_of_openais_api(
    http: httpx.AsyncClient, *, raw: bool | None
) -> None:
    """raw: of a prompt; None: of a chat. Lines have those of all tokens, in their order."""
    shown: dict[str, Any] = {"logprobs": True, "top_logprobs": 2}
    body = asked(**shown) if raw is None else {"prompt": "Hi", "raw": raw, **shown}
    path = CHAT if raw is None else GENERATE
    openais = {"messages": [{"role": "user", "content": "Hi"}], **shown}
    wanted = (await http.post("/v1/chat/completions", json=openais)).json()["choices"][0]
    in_one = (await http.post(path, json={**body, "stream": False})).json()
    told = [json.loads(line) for line in (await http.post(path, json=body)).text.splitlines()]
    streamed = [each for line in told for each in line.get("logprobs", [])]
    assert len(told) > 2
    assert told[0]["logprobs"]
    assert in_one["logprobs"] == streamed == wanted["logprobs"]["content"]
    assert [len(each["top_logprobs"]) for each in streamed][:2] == [2, 2]
    parsed = ollama.ChatResponse if raw is None else ollama.GenerateResponse
    read = parsed(**in_one).logprobs
    assert read is not None
    assert [each.token for each in read] == [each["token"] for each in streamed]
    plain = asked() if raw is None else {"prompt": "Hi"}
    assert "logprobs" not in (await http.post(path, json={**plain, "stream": False})).json()


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        (CHAT, {"messages": [{"role": "poet", "content": "x"}]}, "messages[0].role"),
        (CHAT, {"format": "xml"}, "format"),
        (CHAT, {"options": {"temperature": -1}}, "temperature"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs must be"),
        (CHAT, {"top_logprobs": 2}, "needs logprobs"),
        (GENERATE, {"prompt": "Hi", "raw": True, "top_logprobs": 2}, "needs logprobs"),
        (CHAT, {"tools": [{"type": "function"}]}, "function"),
        (CHAT, {"think": "hugely"}, "think"),
        (GENERATE, {"prompt": "Hi", "suffix": "x"}, "suffix"),
        (GENERATE, {"prompt": "Hi", "context": [1, 2]}, "context"),
        (GENERATE, {"prompt": "Hi", "raw": True, "system": "x"}, "raw"),
    ],
)
async def test_a_wrong_field_of_ollamas_api_is_named(
    http: httpx.AsyncClient, path: str, fields: dict[str, Any], words: str
) -> None:
    body = asked(**fields) if path == CHAT else {"model": MODEL, **fields}
    for stream in (True, False):
        response = await http.post(path, json=body | {"stream": stream})
        assert response.status_code == 400, response.text
        assert list(response.json()) == ["error"]
        assert words in response.json()["error"]


@pytest.mark.parametrize("raw", [True, False])
async def test_a_format_that_cannot_be_compiled_is_named_so(
    http: httpx.AsyncClient, engine: FakeEngineClient, *, raw: bool
) -> None:
    engine.refusal = InvalidRequest(f"{PARAM}: it holds no rule", param=PARAM)
    fields = {"model": MODEL, "prompt": "Hi", "raw": raw, "format": {"type": "object"}}
    response = await http.post(GENERATE, json=fields)
    assert response.json() == {"error": "format: it holds no rule"}


async def test_a_stream_that_fails_ends_with_an_error(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    def script(prompt: list[int], params: SamplingParams) -> Iterable[Step]:
        yield [SequenceDelta(index=0, text="Once", token_ids=[65])]
        yield RequestFailed("the worker failed")

    engine.script = script
    *_, last = await lines_of(http)
    assert last == {"error": "the worker failed"}


async def test_no_text_ends_a_line(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    """Many clients, Ollama's own among them, read lines with httpx, which ends one at any of the
    characters by which Unicode does."""
    text = "one\u2028two\u2029three\x85four\x0b\x0c\x1c\x1d\x1e\r\n👋"
    engine.script = said(text)
    async with http.stream("POST", CHAT, json=asked()) as response:
        lines = [json.loads(line) async for line in response.aiter_lines()]
    assert "".join(line["message"]["content"] for line in lines) == text


@pytest.fixture(scope="module")
def gateway() -> Iterator[LiveGateway]:
    with LiveGateway(FakeEngineClient()) as running:
        yield running


def test_the_client(gateway: LiveGateway) -> None:
    client = ollama.Client(gateway.url)
    messages = [{"role": "user", "content": "Hi"}]
    # Its names have a tag; one that stands for none may be left out.
    for name in (MODEL, f"{MODEL}:latest"):
        reply = client.chat(name, messages)
        assert (reply.message.content, reply.done) == (ANSWER, True)
    pieces = client.chat(MODEL, messages, stream=True)
    assert "".join(piece.message.content or "" for piece in pieces) == ANSWER
    assert client.generate(MODEL, "Hi").response == ANSWER
    assert client.chat(MODEL, [*messages, reply.message, *messages]).done
    assert [model.model for model in client.list().models] == [f"{MODEL}:latest"]
    assert client.ps().models[0].context_length == CONTEXT
    shown = client.show(MODEL)
    assert "completion" in (shown.capabilities or [])
    with pytest.raises(ollama.ResponseError) as missing:
        client.chat("llama3.2", messages)
    assert missing.value.status_code == 404
    assert "llama3.2" in missing.value.error
    version = httpx.get(f"{gateway.url}/api/version").json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 13, 4), "Codex refuses older ones"
    for name in (MODEL, f"{MODEL}:latest"):
        assert client.pull(name).status == "success"
        assert [line.status for line in client.pull(name, stream=True)] == ["success"]
    with pytest.raises(ollama.ResponseError) as missing:
        client.pull("llama3.2")
    assert missing.value.status_code == 404


@pytest.mark.parametrize("names", [True, False])
async def test_tools_are_claimed_where_the_template_shows_them(
    http: httpx.AsyncClient, engine: FakeEngineClient, names: bool
) -> None:
    if names:
        engine.template.source = "{{ messages }}{{ tools }}"
    shown = await http.post("/api/show", json={"model": MODEL})
    assert ("tools" in shown.json()["capabilities"]) is names


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_a_tag_that_stands_for_none_may_be_written_on_every_api(
    http: httpx.AsyncClient, path: str
) -> None:
    body = {"model": f"{MODEL}:latest", "max_tokens": 8}
    turn = [{"role": "user", "content": "Hi"}]
    if path == "/v1/responses":
        body = {"model": f"{MODEL}:latest", "input": "Hi", "store": False}
    else:
        body |= {"messages": turn}
    reply = await http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    assert reply.json()["model"] == MODEL
    unknown = await http.post(path, json={**body, "model": "other:latest"})
    assert unknown.status_code == 404


async def test_what_is_known_of_a_model_s_files_is_told(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    held = WeightFacts(format="gguf", dtype="Q4_K", size=397_807_616, numbers=494_032_768)
    engine.welcome = welcome(family="qwen2", weights=held)
    engine.adapters.learn([NamedAdapter("sql", AdapterFile("a" * 64, "/sql"), 0, 4, MODEL)])
    expected = {
        "parent_model": "",
        "format": "gguf",
        "family": "qwen2",
        "families": ["qwen2"],
        "parameter_size": "494.03M",
        "quantization_level": "Q4_K",
    }
    for path in ("/api/tags", "/api/ps"):
        model, adapter = (await http.get(path)).json()["models"]
        assert (model["details"], model["size"]) == (expected, 397_807_616)
        assert adapter["details"] == expected | {"parent_model": MODEL}
    shown = (await http.post("/api/show", json={"model": MODEL})).json()
    assert shown["details"] == expected
    engine.welcome = welcome(weights=msgspec.structs.replace(held, mixture="Q4_K_M"))
    shown = (await http.post("/api/show", json={"model": MODEL})).json()
    assert shown["details"]["quantization_level"] == "Q4_K_M"
    assert shown["model_info"]["general.parameter_count"] == 494_032_768
    assert shown["capabilities"] == ["completion"]


async def test_unknown_fields_are_skipped_as_by_ollama_and_the_log_names_each_once(
    http: httpx.AsyncClient, engine: FakeEngineClient, caplog: pytest.LogCaptureFixture
) -> None:
    fields = {"options": {"num_predict": 3, "novel_option": 1}, "novel_field": {"a": [1]}}
    for _ in range(2):
        assert (await whole(http, **fields))["done"]
        assert (await whole(http, GENERATE, prompt="Hi", **fields))["done"]
    assert engine.submitted[-1][1].max_tokens == 3
    said = [str(each.__dict__) for each in caplog.records]
    for name in ("novel_field", "options.novel_option"):
        assert sum(f"'{name}'" in each for each in said) == 2, "once for each of the paths"
    assert (await http.post("/api/show", json={"model": MODEL, "novel": 1})).status_code == 200
    wrong = await http.post(CHAT, json=asked(novel_field=1, options={"seed": "x"}))
    assert wrong.status_code == 400
    other = {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "novel_field": 1}
    assert (await http.post("/v1/chat/completions", json=other)).status_code == 400
