"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from penstock.errors import InvalidRequest
from penstock.request.sampling_params import MAX_LOGPROBS
from penstock_gateway.chat.messages import Message
from penstock_gateway.chat.prompt import check_variables, refuse_template
from penstock_gateway.chat.tool_choice import ToolChoice
from penstock_gateway.chat.tools import Tool
from penstock_gateway.generate.beam_search import check_search
from penstock_gateway.generate.echo_options import check_prompt_logprobs
from penstock_gateway.http.errors import clip
from penstock_gateway.request.fields import Flag, GenerateFields, Object, Text, Whole
from penstock_gateway.request.unsupported_fields import (
    COMMON,
    UnsupportedField,
    check_unsupported,
    check_verbosity,
)


class ChatRequest(GenerateFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields beside those of GenerateFields, in the same three groups."""

    messages: list[Message]
    max_completion_tokens: Whole = None
    logprobs: Flag = None
    top_logprobs: Whole = None
    add_generation_prompt: Flag = None
    chat_template_kwargs: Object = None

    tools: list[Tool] | None = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: Flag = None
    include_reasoning: Flag = None
    reasoning_effort: Text = None
    """A variable for the chat template, as chat_template_kwargs are."""
    continue_final_message: Flag = None
    add_special_tokens: Flag = None
    documents: list[dict[str, Any]] | None = None

    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None
    verbosity: Text = None
    web_search_options: Any = None
    chat_template: Text = None
    return_prompt_text: Flag = None


RULES = (
    *COMMON,
    UnsupportedField("modalities", (["text"],)),
    UnsupportedField("audio"),
    UnsupportedField("web_search_options"),
    UnsupportedField("return_prompt_text", (False,)),
)
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_RETIRED = (("functions", "tools"), ("function_call", "tool_choice"))


def check(request: ChatRequest) -> None:
    """What can be told without a model. Raises InvalidRequest."""
    check_unsupported(request, RULES)
    check_prompt_logprobs(request)
    check_search(request)
    top = request.top_logprobs
    if top is not None and not 0 <= top <= MAX_LOGPROBS:
        raise InvalidRequest(
            f"top_logprobs must be a whole number in [0, {MAX_LOGPROBS}], not {top}",
            param="top_logprobs",
        )
    if top and not request.logprobs:
        raise InvalidRequest(
            f"top_logprobs is {top}, which needs logprobs: true", param="top_logprobs"
        )
    one, other = request.max_completion_tokens, request.max_tokens
    if one is not None and other is not None and one != other:
        raise InvalidRequest(
            f"max_tokens is {other} and max_completion_tokens is {one}; they mean the same: set "
            "only one of them",
            param="max_tokens",
        )
    check_variables(request.chat_template_kwargs)
    refuse_template(request.chat_template)
    for field, instead in _RETIRED:
        if getattr(request, field) not in (None, [], "none"):
            raise InvalidRequest(
                f"{field} is the deprecated form of {instead}, and is not supported; send "
                f"{instead}",
                param=field,
                code="unsupported_value",
            )
    check_verbosity("verbosity", request.verbosity)
    effort = request.reasoning_effort
    if effort is not None and effort not in EFFORTS:
        raise InvalidRequest(
            f"reasoning_effort is {clip(effort)}; allowed: {', '.join(EFFORTS)}",
            param="reasoning_effort",
        )
