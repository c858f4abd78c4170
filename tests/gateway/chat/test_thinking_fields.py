"""Other servers' fields about thinking: what the chat template and the reply make of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.errors import InvalidRequest
from penstock_gateway.chat.endpoint import ChatRequest, check_chat
from penstock_gateway.chat.prompt import shows_thoughts, thinking_variables

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
        ({"reasoning": {"max_tokens": 5}}, "reasoning.max_tokens"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_chat(request(**fields))
    assert refused.value.param == param
