"""Fields by which clients of other servers say whether, and how hard, a model is to think before it
answers: each becomes what the chat template knows, or what the reply leaves out."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import msgspec

from penstock.errors import InvalidRequest
from penstock_gateway.http.errors import clip

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


class ReasoningField(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """OpenRouter's `reasoning`. exclude: the thoughts are left out of the reply.  summary: of
    OpenAI's Responses, without effect."""

    effort: str | None = None
    enabled: bool | None = None
    exclude: bool | None = None
    max_tokens: int | None = None
    summary: str | None = None


class ThinkingSwitch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`thinking` of DeepSeek, GLM and Anthropic. budget_tokens: accepted, without effect."""

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


def check_thinking(request: ThinkingRequest) -> None:
    """Raises InvalidRequest for an effort that there isn't, a budget, and fields that contradict
    one another."""
    reasoning = request.reasoning
    if reasoning is not None and reasoning.max_tokens is not None:
        raise InvalidRequest(
            f"reasoning.max_tokens is {reasoning.max_tokens}, which is not supported yet; allowed: "
            "null",
            param="reasoning.max_tokens",
            code="unsupported_value",
        )
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


def thinking_variables(request: ThinkingRequest) -> dict[str, Any]:
    """Variables for the chat template. Qwen's and GLM's call the switch `enable_thinking`, those of
    DeepSeek and Granite `thinking`; a template ignores what it doesn't know."""
    variables: dict[str, Any] = {}
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
                f"{first} and {field} contradict each other; send one of them", param=field
            )
