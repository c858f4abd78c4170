"""The body of POST /v1/messages."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock_dialects.anthropic.errors import THREAD_UNSUPPORTED
from penstock_gateway.http.errors import clip
from penstock_gateway.request.dialect import Dialect, NamedField, named, same
from penstock_gateway.request.fields import (
    Number,
    Object,
    RepetitionDetection,
    RequestFields,
    Text,
    Whole,
)

STATELESS = "this server stores nothing between requests"


class MediaContent(msgspec.Struct, frozen=True, kw_only=True):
    """Where a picture or document is. type: base64 (media_type, data), url, or text (data)."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class FoundText(msgspec.Struct, frozen=True, kw_only=True):
    """A text of a search_result. type: text."""

    type: str
    text: str | None = None


class BlockFields(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a system prompt, or of a call's result: text, image, document, search_result or
    tool_reference.
    Fields that are unknown here are skipped, as clients send back what other servers gave them."""

    type: str
    text: str | None = None
    source: MediaContent | str | None = None
    """A search_result's is its address."""
    title: str | None = None
    tool_name: str | None = None
    """A tool_reference's."""


class ShownBlock(BlockFields, frozen=True, kw_only=True):
    """One that is shown to the model. content: of a search_result."""

    content: str | list[FoundText] | None = None


class ContentBlock(BlockFields, frozen=True, kw_only=True):
    """A block of a message: one of BlockFields, or tool_use, tool_result, thinking or
    redacted_thinking."""

    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    content: str | list[ShownBlock] | None = None
    """The content of a tool_result or search_result."""


class InputMessage(msgspec.Struct, frozen=True, kw_only=True):
    """role: user, assistant, or system."""

    role: str
    content: str | list[ContentBlock]


class InputTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the client runs. type: custom, or nothing. Fields that are unknown here are
    skipped: they are for Anthropic's own servers."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoiceField(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """type: auto, any, tool (with a name) or none."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


LEAST_BUDGET = 1024
"""Fewest tokens of thoughts that Anthropic's API takes for their maximum."""


class ThinkingField(msgspec.Struct, frozen=True, kw_only=True):
    """type: enabled, adaptive or disabled. budget_tokens: the most tokens that the thoughts may
    have, of a model that marks them with tokens of their own."""

    type: str
    budget_tokens: int | None = None


class OutputFormat(msgspec.Struct, frozen=True, kw_only=True):
    """type: json_schema."""

    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True):
    """effort: a variable for the chat template. format: what the answer's text looks like."""

    effort: str | None = None
    format: OutputFormat | None = None


class ConversationFields(RequestFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a message and a count of its tokens share."""

    # These work.
    messages: list[InputMessage] | None = None
    system: str | list[ShownBlock] | None = None
    tools: list[InputTool] | None = None
    tool_choice: ToolChoiceField | None = None
    thinking: ThinkingField | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    """The name of output_config.format while it was a beta."""
    chat_template_kwargs: Object = None
    """vLLM's: further variables for the chat template."""

    # Without effect on the output.
    cache_control: Any = None
    """Prefixes are cached without being asked for."""
    context_management: Any = None
    diagnostics: Any = None
    inference_geo: Text = None
    speed: Text = None
    user_profile_id: Text = None
    workspace_id: Text = None
    billing_policy: Any = None
    fallbacks: Any = None
    fallback_credit_token: Text = None

    # Only at their neutral value.
    container: Any = None
    mcp_servers: Any = None
    thread: Any = None
    """A conversation that the server remembers. Answers say null:
    there is none, so the SDK sends all of it."""


class MessagesRequest(ConversationFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a message's own."""

    max_tokens: Whole = None
    stop_sequences: list[str] | None = None
    temperature: Number = None
    top_p: Number = None
    top_k: Whole = None
    seed: Whole = None
    """A seed for random draws, as OpenAI's API has it; Anthropic's has no such field."""
    repetition_detection: RepetitionDetection | None = None
    """vLLM's, of its chat."""
    penstock_receipt: Text = None


ANTHROPIC = Dialect(
    NamedField("stop_sequences", "stop"),
    *same("temperature", "top_p", "top_k", "seed", "repetition_detection"),
    *named("max_tokens", "max_completion_tokens"),
    *named("output_config.format", "response_format", "response_format.json_schema"),
    *named("output_config.format.schema", "response_format.json_schema.schema"),
    *named("output_config.effort", "reasoning_effort"),
    *named("thinking.budget_tokens", "thinking_token_budget"),
    *named("tool_choice.disable_parallel_tool_use", "parallel_tool_calls"),
    *named("tool_choice", "tool_choice.function"),
    *named("messages", "continue_final_message", "add_generation_prompt"),
)
"""Anthropic's names; Conversation has those within messages and tools."""


class CountRequest(ConversationFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message whose tokens are to be counted."""


def check(request: ConversationFields) -> None:
    """Checks what needs no model. Raises InvalidRequest."""
    for field in ("container", "mcp_servers"):
        value = getattr(request, field)
        if value not in (None, [], {}):
            raise InvalidRequest(
                f"{field} is {clip(value)}, but {STATELESS} and calls no other services; allowed: "
                "null",
                param=field,
                code="unsupported_value",
            )
    if request.thread not in (None, False):
        raise InvalidRequest(
            f"thread is {clip(request.thread)}, but {STATELESS}; send the whole conversation in "
            "messages, without thread",
            param="thread",
            code=THREAD_UNSUPPORTED,
        )
    if not request.messages:
        raise InvalidRequest(
            "messages is missing or empty; it must have at least one message", param="messages"
        )
    thinking = request.thinking
    if thinking is not None and thinking.type not in ("enabled", "adaptive", "disabled"):
        raise InvalidRequest(
            f"thinking.type is {clip(thinking.type)}; allowed: enabled, adaptive, disabled",
            param="thinking.type",
        )
    budget = budget_of(request)
    if budget is not None and budget < LEAST_BUDGET:
        raise _wrong_budget(budget, f"at least {LEAST_BUDGET}")


def check_budget(request: MessagesRequest) -> None:
    """Raises InvalidRequest for thoughts that may be as long as the message. With tools they may:
    there can be thoughts before each of several calls, as Anthropic allows."""
    budget, most = budget_of(request), check_max_tokens(request)
    if budget is not None and budget >= most and not request.tools:
        raise _wrong_budget(budget, f"below max_tokens, {most}")


def budget_of(request: ConversationFields) -> int | None:
    """The most tokens of thoughts that it says; None if it says none."""
    thinking = request.thinking
    return None if thinking is None or thinking.type != "enabled" else thinking.budget_tokens


def _wrong_budget(budget: int, bound: str) -> InvalidRequest:
    return InvalidRequest(
        f"thinking.budget_tokens is {budget}; it must be {bound}",
        param="thinking.budget_tokens",
        code="invalid_value",
    )


def check_max_tokens(request: MessagesRequest) -> int:
    """max_tokens, which a message must say. Raises InvalidRequest."""
    if request.max_tokens is None or request.max_tokens < 1:
        raise InvalidRequest(
            "max_tokens is missing or below 1; it must be the maximum number of tokens to generate",
            param="max_tokens",
        )
    return request.max_tokens
