"""Other servers' fields about thinking: what the chat template, the sampler and the reply make of
them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest

from penstock.errors import InvalidRequest
from penstock_gateway.chat.endpoint import ChatRequest, check_chat
from penstock_gateway.chat.thinking import shows_thoughts, thinking_variables
from tests.gateway.fake_engine import FakeEngineClient, say

THINKS = {"enable_thinking": True, "thinking": True}
THINKS_NOT = {"enable_thinking": False, "thinking": False}


def request(**fields: Any) -> ChatRequest:
    return msgspec.convert({"messages": [{"role": "user", "content": "x"}], **fields}, ChatRequest)


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({}, {}),
        ({"enable_thinking": False}, THINKS_NOT),
        ({"enable_thinking": True}, THINKS),
        ({"thinking": {"type": "disabled"}}, THINKS_NOT),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, THINKS),
        ({"thinking": {"type": "auto"}}, {}),
        ({"thinking": True}, THINKS),
        ({"reasoning": {"enabled": False}}, THINKS_NOT),
        ({"reasoning": {"effort": "high"}}, {"reasoning_effort": "high"}),
        ({"reasoning": {"effort": "none"}}, {"reasoning_effort": "none", **THINKS_NOT}),
        (
            {"reasoning_effort": "low", "enable_thinking": True},
            {"reasoning_effort": "low"} | THINKS,
        ),
        ({"reasoning": {"exclude": True}}, {}),
    ],
)
def test_the_template_hears_of_it(fields: dict[str, Any], variables: dict[str, Any]) -> None:
    asked = request(**fields)
    check_chat(asked)
    assert thinking_variables(asked) == variables


def test_thoughts_can_be_left_out_in_both_ways() -> None:
    assert shows_thoughts(request())
    assert shows_thoughts(request(reasoning={"exclude": False}, include_reasoning=True))
    assert not shows_thoughts(request(reasoning={"exclude": True}))
    assert not shows_thoughts(request(include_reasoning=False))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"enable_thinking": True, "thinking": {"type": "disabled"}}, "thinking"),
        ({"thinking": True, "reasoning": {"effort": "none"}}, "reasoning.effort"),
        ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_chat(request(**fields))
    assert refused.value.param == param


URL, MESSAGES = "/v1/chat/completions", [{"role": "user", "content": "Hi"}]
SWITCH = {"type": "enabled", "budget_tokens": 9}


@pytest.fixture
def marked(engine: FakeEngineClient) -> FakeEngineClient:
    """An engine whose model marks its thoughts with tokens."""
    tokenizer = engine.text.tokenizer
    marks = {254: "<think>", 255: "</think>"}
    by_text = {text: token for token, text in marks.items()}
    plain = tokenizer.encode

    def encode(text: str, **options: Any) -> list[int]:
        return [by_text[text]] if text in by_text else plain(text, **options)

    tokenizer.encode = encode
    tokenizer.added_tokens = {
        **tokenizer.added_tokens,
        **{token: SimpleNamespace(content=text) for token, text in marks.items()},
    }
    engine.template.source = "<think></think>"
    engine.script = say("Yes")
    return engine


@pytest.mark.parametrize(
    ("fields", "budget"),
    [
        ({}, None),
        ({"thinking_token_budget": 9}, 9),
        ({"thinking_token_budget": 0}, 0),
        ({"thinking_token_budget": -1}, None),
        ({"enable_thinking": True, "thinking_budget": 9}, 9),
        ({"thinking_budget_tokens": 9}, 9),
        ({"reasoning": {"max_tokens": 9}}, 9),
        ({"thinking_budget": 9, "thinking_token_budget": 9}, 9),
        ({"thinking": SWITCH}, 9),
        ({"thinking": SWITCH, "thinking_token_budget": 7}, 7),
        ({"thinking": SWITCH, "thinking_token_budget": -1}, None),
        ({"thinking": {**SWITCH, "type": "disabled"}}, None),
    ],
)
async def test_a_budget_goes_to_the_sampler_whatever_its_name(
    http: httpx.AsyncClient, marked: FakeEngineClient, fields: dict[str, Any], budget: int | None
) -> None:
    answer = await http.post(URL, json={"messages": MESSAGES, **fields})
    assert answer.status_code == 200, answer.text
    _, params, _ = marked.submitted[-1]
    assert params.thinking_token_budget == budget


async def test_a_switch_bounds_no_thoughts_that_have_no_marks(
    http: httpx.AsyncClient, engine: FakeEngineClient
) -> None:
    """It is sent to any model; a field for nothing but a budget is left to the engine's client,
    which refuses it."""
    await http.post(URL, json={"messages": MESSAGES, "thinking": SWITCH})
    assert engine.submitted[-1][1].thinking_token_budget is None
    await http.post(URL, json={"messages": MESSAGES, "thinking_budget": 9})
    assert engine.submitted[-1][1].thinking_token_budget == 9


async def test_anthropics_budget_bounds_thoughts(
    http: httpx.AsyncClient, marked: FakeEngineClient
) -> None:
    asked = {"messages": MESSAGES, "max_tokens": 4096}
    for thinking, budget in (
        ({"type": "enabled", "budget_tokens": 2048}, 2048),
        ({"type": "adaptive"}, None),
        ({"type": "disabled"}, None),
    ):
        answer = await http.post("/v1/messages", json={**asked, "thinking": thinking})
        assert answer.status_code == 200, answer.text
        assert marked.submitted[-1][1].thinking_token_budget == budget


@pytest.mark.parametrize(
    ("url", "fields", "words"),
    [
        (URL, {"thinking_budget": 5, "thinking_token_budget": 6}, "they mean the same"),
        (URL, {"reasoning": {"max_tokens": 5}, "thinking_budget": 6}, "reasoning.max_tokens is 5"),
        (URL, {"thinking_budget": 1.5}, "thinking_budget"),
        (URL, {"thinking_token_budget": -2}, "thinking_token_budget must be a whole number in [-1"),
        (URL, {"thinking_budget": 5, "use_beam_search": True}, "can't be combined with use_beam"),
        ("/v1/completions", {"thinking_token_budget": -2}, "must be a whole number in [-1"),
    ],
)
async def test_a_wrong_budget_is_refused(
    http: httpx.AsyncClient, url: str, fields: dict[str, Any], words: str
) -> None:
    body = {"prompt": "Hi"} if "chat" not in url else {"messages": MESSAGES}
    answer = await http.post(url, json={**body, **fields})
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
