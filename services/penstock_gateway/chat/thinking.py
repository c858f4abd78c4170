"""The fields by which clients of several servers say whether, how hard and how long a model is to
think before it answers: each becomes what the chat template knows, a budget of thoughts, or what
the reply leaves out."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Literal, Protocol

import msgspec

from penstock.client.thinking import FIELD
from penstock.errors import Field, InvalidRequest
from penstock_gateway.http.errors import clip

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


class ReasoningField(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """OpenRouter's `reasoning`. exclude: the thoughts are left out of the reply.  max_tokens: the
    most tokens that they may have.  summary: of OpenAI's Responses, without effect."""

    effort: str | None = None
    enabled: bool | None = None
    exclude: bool | None = None
    max_tokens: int | None = None
    summary: str | None = None


class ThinkingSwitch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`thinking` of DeepSeek, GLM and Anthropic. budget_tokens: the most tokens that the thoughts
    may have, of a model that marks them with tokens of their own; without effect on others."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: int | None = None


class ThinkingRequest(Protocol):
    """A request with these fields."""

    @property
    def reasoning(self) -> ReasoningField | None: ...
    @property
    def thinking(self) -> ThinkingSwitch | bool | None: ...
    @property
    def enable_thinking(self) -> bool | None: ...
    @property
    def reasoning_effort(self) -> str | None: ...
    @property
    def include_reasoning(self) -> bool | None: ...
    @property
    def thinking_token_budget(self) -> int | None: ...
    @property
    def thinking_budget(self) -> int | None: ...
    @property
    def thinking_budget_tokens(self) -> int | None: ...


_SAID = attrgetter("reasoning", "thinking", "enable_thinking", "reasoning_effort")
_BUDGETS = attrgetter(
    "reasoning", "thinking_token_budget", "thinking_budget", "thinking_budget_tokens"
)
_NOTHING = (None,) * 4


def check_thinking(request: ThinkingRequest) -> None:
    """Raises InvalidRequest for an effort or a budget that there isn't, and fields that contradict
    one another."""
    if _SAID(request) == _NOTHING:
        return
    reasoning = request.reasoning
    given = {
        "reasoning_effort": request.reasoning_effort,
        "reasoning.effort": None if reasoning is None else reasoning.effort,
    }
    for field, effort in given.items():
        if effort is not None and effort not in EFFORTS:
            raise InvalidRequest(
                f"{field} is {clip(effort)}; allowed: {', '.join(EFFORTS)}", param=field
            )
    _refuse_contradiction(given)
    _refuse_contradiction(_switches(request))


def one_budget(request: ThinkingRequest) -> int | None:
    """The request's thinking_token_budget, whatever it calls it; None where it has none. Raises
    ValueError for two."""
    if _BUDGETS(request) == _NOTHING:
        return None
    reasoning = request.reasoning
    given = {
        FIELD: request.thinking_token_budget,
        "thinking_budget": request.thinking_budget,
        "thinking_budget_tokens": request.thinking_budget_tokens,
        "reasoning.max_tokens": None if reasoning is None else reasoning.max_tokens,
    }
    said = {field: budget for field, budget in given.items() if budget is not None}
    if len(set(said.values())) > 1:
        both = " and ".join(f"{field} is {budget}" for field, budget in said.items())
        raise ValueError(f"{both}; they mean the same: set only one of them")
    return next(iter(said.values()), None)


def thinking_variables(request: ThinkingRequest) -> dict[str, Any]:
    """Variables for the chat template. Qwen's and GLM's call the switch `enable_thinking`, those of
    DeepSeek and Granite `thinking`; a template ignores what it doesn't know."""
    variables: dict[str, Any] = {}
    if _SAID(request) == _NOTHING:
        return variables
    reasoning = request.reasoning
    effort = request.reasoning_effort or (None if reasoning is None else reasoning.effort)
    if effort is not None:
        variables["reasoning_effort"] = effort
    thinks = next((one for one in _switches(request).values() if one is not None), None)
    if thinks is not None:
        variables |= {"enable_thinking": thinks, "thinking": thinks}
    return variables


def shows_thoughts(request: ThinkingRequest) -> bool:
    """Whether the reply brings the model's thoughts."""
    reasoning = request.reasoning
    hidden = reasoning is not None and reasoning.exclude is True
    return request.include_reasoning is not False and not hidden


def _switches(request: ThinkingRequest) -> dict[str, bool | None]:
    """Whether the model is to think, by each field that says so; None: it says nothing."""
    reasoning, thinking = request.reasoning, request.thinking
    if isinstance(thinking, ThinkingSwitch):
        # A model that decides by itself is one that may think.
        thinking = None if thinking.type == "auto" else thinking.type != "disabled"
    enabled = effort = None
    if reasoning is not None:
        enabled = reasoning.enabled
        effort = False if reasoning.effort == "none" else None
    return {
        "enable_thinking": request.enable_thinking,
        "thinking": thinking,
        "reasoning.enabled": enabled,
        "reasoning.effort": effort,
    }


def _refuse_contradiction(given: dict[str, Any]) -> None:
    said = {field: value for field, value in given.items() if value is not None}
    first = next(iter(said), None)
    for field, value in said.items():
        if first is not None and value != said[first]:
            raise InvalidRequest(
                Field(first),
                " and ",
                Field(field),
                " contradict each other; send one of them",
                param=field,
            )
