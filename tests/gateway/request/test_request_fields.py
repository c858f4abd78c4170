"""Known fields, unknown fields, wrong values: each error names the field and what is allowed."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from tests.gateway.fake_engine import CONTEXT, MODEL, FakeEngineClient

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
USER = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}]},
    TEXT: {"prompt": "Hi"},
}


async def refusal(
    http: httpx.AsyncClient, url: str, fields: dict[str, Any], status: int = 400
) -> dict[str, Any]:
    """The error object of a request that must be refused with `status`."""
    response = await http.post(url, json=BODIES[url] | fields)
    assert response.status_code == status, response.text
    assert response.headers["x-request-id"]
    reply = response.json()
    assert list(reply) == ["error"]
    assert set(reply["error"]) == {"message", "type", "param", "code"}
    return reply["error"]


WITHOUT_EFFECT = {
    "user": "u",
    "metadata": {"a": "b"},
    "store": True,
    "service_tier": "flex",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "length_penalty": 2.0,
    "spaces_between_special_tokens": False,
    "cache_prompt": True,
    "id_slot": -1,
    "timings_per_token": True,
    "return_progress": True,
    "samplers": ["min_p", "temperature"],
    "keep_alive": "5m",
}
NEUTRAL = {
    "truncation_side": "left",
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": {},
    "bad_words": [],
    "thinking_token_budget": -1,
    "logprob_token_ids": [],
    "response_format": {"type": "text"},
    "structured_outputs": None,
    "guided_json": None,
    "use_beam_search": False,
    "best_of": 1,
    "include_stop_str_in_output": False,
    "echo": False,
    "stop": None,
    "stop_token_ids": [],
    "stream": None,
    "temperature": None,
    "n": None,
}
UNSUPPORTED = {
    "logits_processors": ["x"],
    "vllm_xargs": {"a": 1},
}
CHAT_NEUTRAL = {
    "tools": [],
    "tool_choice": "auto",
    "functions": [],
    "function_call": "none",
    "modalities": ["text"],
    "audio": None,
    "parallel_tool_calls": True,
    "continue_final_message": False,
    "top_logprobs": 0,
    "verbosity": "high",
    "reasoning_effort": "none",
    "separate_reasoning": True,
    "stream_reasoning": True,
    "reasoning_format": "auto",
}
CHAT_UNSUPPORTED = {
    "functions": [{"name": "f"}],
    "function_call": {"name": "f"},
    "modalities": ["text", "audio"],
    "audio": {"voice": "alloy"},
    "web_search_options": {},
    "separate_reasoning": False,
    "reasoning_format": "none",
}


@pytest.mark.parametrize("url", [CHAT, TEXT])
@pytest.mark.parametrize("kind", ["without_effect", "neutral"])
async def test_accepted(
    http: httpx.AsyncClient, engine: FakeEngineClient, url: str, kind: str
) -> None:
    fields = WITHOUT_EFFECT if kind == "without_effect" else NEUTRAL
    if url == CHAT and kind == "neutral":
        fields = fields | CHAT_NEUTRAL
    response = await http.post(url, json=BODIES[url] | fields)
    assert response.status_code == 200, response.text
    await http.post(url, json=BODIES[url])
    with_fields, without = (params for _, params, _ in engine.submitted)
    assert with_fields == without


@pytest.mark.parametrize(
    ("url", "field", "value"),
    [(url, *item) for url in (CHAT, TEXT) for item in UNSUPPORTED.items()]
    + [(CHAT, *item) for item in CHAT_UNSUPPORTED.items()]
    + [(TEXT, "prompt_embeds", "AAAA")],
)
async def test_unsupported(http: httpx.AsyncClient, url: str, field: str, value: Any) -> None:
    error = await refusal(http, url, {field: value})
    assert error["param"] == field
    assert field in error["message"]
    assert "supported" in error["message"]
    assert error["code"] == "unsupported_value"


@pytest.mark.parametrize("url", [CHAT, TEXT])
async def test_unknown_field(http: httpx.AsyncClient, url: str) -> None:
    error = await refusal(http, url, {"temprature": 1})
    assert error["param"] == "temprature"
    assert error["code"] == "unknown_parameter"
    assert error["message"] == "unknown field temprature; did you mean temperature?"


@pytest.mark.parametrize(
    ("name", "says"),
    [("n_predict", "did you mean max_tokens?"), ("zzzz", "GET /docs lists those that there are")],
)
async def test_unknown_field_of_another_server(
    http: httpx.AsyncClient, name: str, says: str
) -> None:
    error = await refusal(http, TEXT, {name: 5})
    assert error["message"] == f"unknown field {name}; {says}"


@pytest.mark.parametrize(
    ("fields", "param", "allowed"),
    [
        (
            {"stream_options": {"zz": True}},
            "stream_options.zz",
            "allowed: continuous_usage_stats, include_obfuscation, include_usage",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "scheme": {}},
                }
            },
            "response_format.json_schema.scheme",
            "did you mean schema?",
        ),
    ],
)
async def test_unknown_nested_field(
    http: httpx.AsyncClient, fields: dict[str, Any], param: str, allowed: str
) -> None:
    error = await refusal(http, CHAT, fields)
    assert error["param"] == param
    assert allowed in error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"temperature": "hot"}, "temperature", "expected float or null, got str"),
        ({"n": 1.5}, "n", "expected int or null, got float"),
        ({"n": True}, "n", "expected int or null, got bool"),
        ({"stream": "yes"}, "stream", "expected bool or null, got str"),
        ({"stop": 3}, "stop", "got int"),
        ({"stop": ["a", 3]}, "stop[1]", "expected str, got int"),
        ({"messages": "Hi"}, "messages", "expected array, got str"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content", "got int"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "missing"),
        ({"logit_bias": {"5": "x"}}, "logit_bias[...]", "expected float, got str"),
    ],
)
async def test_wrong_type(
    http: httpx.AsyncClient, fields: dict[str, Any], param: str, says: str
) -> None:
    error = await refusal(http, CHAT, fields)
    assert error["param"] == param
    assert says in error["message"]


@pytest.mark.parametrize(
    ("url", "fields", "param", "says"),
    [
        (CHAT, {"temperature": -1}, "temperature", "[0, 100]"),
        (CHAT, {"temperature": 101}, "temperature", "[0, 100]"),
        (CHAT, {"top_p": -0.1}, "top_p", "[0, 1]"),
        (CHAT, {"top_p": 1.1}, "top_p", "[0, 1]"),
        (CHAT, {"top_k": -2}, "top_k", "[-1, "),
        (CHAT, {"min_p": 2}, "min_p", "[0, 1]"),
        (CHAT, {"n": 0}, "n", "[1, 128]"),
        (CHAT, {"n": 129}, "n", "[1, 128]"),
        (CHAT, {"stop": [str(i) for i in range(17)]}, "stop", "at most 16"),
        (CHAT, {"stop": ""}, "stop", "1 to 1024"),
        (CHAT, {"stop_token_ids": [5, 257]}, "stop_token_ids", "0 to 256"),
        (CHAT, {"seed": 2**64}, "seed", "whole number"),
        (CHAT, {"seed": -(2**63) - 1}, "seed", "whole number"),
        (CHAT, {"max_tokens": -2}, "max_tokens", "-1 or a whole number in [0, "),
        (
            CHAT,
            {"repetition_detection": {"max_pattern_size": 257, "min_count": 2}},
            "repetition_detection.max_pattern_size",
            "[1, 256]",
        ),
        (
            TEXT,
            {"repetition_detection": {"max_pattern_size": 256, "min_count": 17}},
            "repetition_detection.min_count",
            "[2, 16]",
        ),
        (
            CHAT,
            {"repetition_detection": {"max_pattern_size": 4, "min_count": 2, "size": 1}},
            "repetition_detection.size",
            "size",
        ),
        (
            CHAT,
            {"repetition_detection": {"min_count": 2}},
            "repetition_detection.max_pattern_size",
            "missing",
        ),
        (CHAT, {"max_tokens": 5, "min_tokens": 6}, "min_tokens", "more than max_tokens"),
        (CHAT, {"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "one of them"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "[0, 20]"),
        (CHAT, {"top_logprobs": 2}, "top_logprobs", "logprobs: true"),
        (CHAT, {"stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
        (CHAT, {"verbosity": "loud"}, "verbosity", "low, medium, high"),
        (CHAT, {"request_id": "a\nb"}, "request_id", "printable"),
        (CHAT, {"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs", "tools"),
        (TEXT, {"logprobs": 21}, "logprobs", "[0, 20]"),
        (TEXT, {"prompt": None}, "prompt", "missing"),
        (TEXT, {"prompt": ""}, "prompt", "empty"),
        (TEXT, {"prompt": []}, "prompt", "empty"),
        (TEXT, {"prompt": ["a", ""]}, "prompt", "prompt[1] is empty"),
        (TEXT, {"prompt": [[1], []]}, "prompt", "prompt[1] is empty"),
        (TEXT, {"prompt": ["a", 1]}, "prompt", "mixes"),
        (TEXT, {"prompt": [1, 257]}, "prompt", "0 to 256"),
        (TEXT, {"prompt": [-1]}, "prompt", "0 to 256"),
        (TEXT, {"prompt": ["x"] * 129}, "prompt", "at most 128"),
        (TEXT, {"prompt": ["x"] * 128, "n": 9}, "n", "at most 1024"),
    ],
)
async def test_out_of_range(
    http: httpx.AsyncClient, url: str, fields: dict[str, Any], param: str, says: str
) -> None:
    error = await refusal(http, url, fields)
    assert error["param"] == param
    assert says in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("messages", "param", "says"),
    [
        ([], "messages", "empty"),
        ([{"role": "user", "content": []}], "messages[0].content", "empty"),
        ([{"role": "user"}], "messages[0].content", "missing"),
        ([{"role": "user", "text": "x"}], "messages[0].content", "missing"),
        (
            [{"role": "user", "content": [{"type": "text", "txt": "x"}]}],
            "messages[0].content[0].text",
            "missing",
        ),
        ([{"role": "system", "content": None}], "messages[0].content", "missing"),
        ([{"role": "bot", "content": "x"}], "messages[0].role", "user"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}],
            "messages[0].content[0]",
            "media are not supported by this model, which takes text only",
        ),
        (
            [{"role": "user", "content": [{"type": "poem", "text": "x"}]}],
            "messages[0].content[0].type",
            "allowed: text",
        ),
        (
            [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}],
            "messages[0].tool_calls[0].function",
            "missing",
        ),
        ([{"role": "user", "content": "x"}] * (CONTEXT + 1), "messages", "at most"),
    ],
)
async def test_bad_messages(
    http: httpx.AsyncClient, messages: list[Any], param: str, says: str
) -> None:
    error = await refusal(http, CHAT, {"messages": messages})
    assert error["param"] == param
    assert says in error["message"]


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_max_tokens_beyond_the_context(http: httpx.AsyncClient, field: str) -> None:
    error = await refusal(http, CHAT, {field: CONTEXT})
    prompt = len("user: Hi\nassistant:")
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == field
    for number in (prompt, CONTEXT, prompt + CONTEXT, CONTEXT - prompt):
        assert str(number) in error["message"]
    assert "--oversized-max-tokens reduce" in error["message"]


@pytest.mark.parametrize(
    ("url", "fields", "prompt"),
    [
        (CHAT, {"messages": USER, "max_tokens": 32_000}, "user: Hi\nassistant:"),
        (CHAT, {"messages": USER, "max_completion_tokens": CONTEXT}, "user: Hi\nassistant:"),
        (TEXT, {"prompt": "Hi", "max_tokens": 32_000}, "Hi"),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 32_000}, "user: Hi\nassistant:"),
        (CHAT, {"messages": USER, "max_tokens": 5}, None),
    ],
)
async def test_max_tokens_beyond_the_context_can_be_reduced(
    engine: FakeEngineClient, url: str, fields: dict[str, Any], prompt: str | None
) -> None:
    app = create_app(engine, GatewayConfig(oversized_max_tokens="reduce"))  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        reply = await http.post(url, json={"model": MODEL, **fields})
    assert reply.status_code == 200, reply.text
    room = 5 if prompt is None else CONTEXT - len(prompt)
    assert engine.submitted[-1][1].max_tokens == room


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("url", "fields", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "x" * CONTEXT}]}, "messages"),
        (TEXT, {"prompt": "x" * CONTEXT}, "prompt"),
        (TEXT, {"prompt": [1] * CONTEXT}, "prompt"),
        (TEXT, {"prompt": "x" * (CONTEXT * 64 + 1)}, "prompt"),
    ],
)
async def test_prompt_beyond_the_context(
    http: httpx.AsyncClient, url: str, fields: dict[str, Any], param: str, stream: bool
) -> None:
    error = await refusal(http, url, fields | {"stream": stream})
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == param
    assert str(CONTEXT) in error["message"]


async def test_far_too_long_a_prompt_is_not_tokenised(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    messages = [{"role": "user", "content": "x" * (CONTEXT * 64 + 1)}]
    error = await refusal(http, CHAT, {"messages": messages})
    assert "characters" in error["message"]
    assert engine.template.calls == []


async def test_wrong_model(http: httpx.AsyncClient) -> None:
    error = await refusal(http, CHAT, {"model": "gpt-4"}, 404)
    assert error["code"] == "model_not_found"
    assert error["param"] == "model"
    assert MODEL in error["message"]


async def test_no_chat_template(http: httpx.AsyncClient, engine: FakeEngineClient) -> None:
    from penstock.client import ModelText

    engine.text = ModelText(engine.text.tokenizer, None)
    assert "no chat template" in (await refusal(http, CHAT, {}))["message"]
    assert (await http.post(TEXT, json=BODIES[TEXT])).status_code == 200
