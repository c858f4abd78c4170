"""The body of POST /v1/responses."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock_gateway.http.errors import clip
from penstock_gateway.request.fields import (
    Flag,
    Number,
    Object,
    RepetitionDetection,
    RequestFields,
    Text,
    UnsupportedField,
    Whole,
    check_unsupported,
    check_verbosity,
)
from penstock_gateway.request.structure import StructuredFields
from penstock_gateway.responses.input_items import InputItem
from penstock_gateway.responses.tools import FunctionChoice, Tools

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
INCLUDES = (
    LOGPROBS,
    ENCRYPTED,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)
"""Clients ask for all that they know. Those after the first two add nothing: they belong to items
that no answer has."""
SUMMARIES = ("auto", "concise", "detailed")
TRUNCATIONS = ("disabled", "auto")
STATELESS = (
    "this server stores no responses (its operator can enable that with --stored-response-hours)"
)


class TextFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """type: text, json_object or json_schema."""

    type: str
    name: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None
    description: str | None = None


class TextOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the answer's text looks like. verbosity: accepted, without effect."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """effort: a variable for the chat template.  summary: auto, concise or detailed, all of which
    show the thoughts themselves as the summary.  generate_summary: its older name."""

    effort: Text = None
    summary: Text = None
    generate_summary: Text = None


class ConversationParam(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """id: of a conversation."""

    id: str


class ResponsesRequest(RequestFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields besides those of RequestFields."""

    # These work.
    input: str | list[InputItem] | None = None
    instructions: Text = None
    max_output_tokens: Whole = None
    temperature: Number = None
    top_p: Number = None
    text: TextOptions | None = None
    include: list[str] | None = None
    top_logprobs: Whole = None
    top_k: Whole = None
    min_p: Number = None
    seed: Whole = None
    stop: str | list[str] | None = None
    presence_penalty: Number = None
    frequency_penalty: Number = None
    repetition_penalty: Number = None
    logit_bias: dict[str, float] | None = None
    repetition_detection: RepetitionDetection | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: Flag = None
    include_stop_str_in_output: Flag = None
    skip_special_tokens: Flag = None
    structured_outputs: StructuredFields | None = None
    mm_processor_kwargs: Object = None
    chat_template_kwargs: Object = None
    tools: Tools | None = None
    tool_choice: str | FunctionChoice | None = None
    parallel_tool_calls: Flag = None
    reasoning: ReasoningOptions | None = None
    penstock_receipt: Text = None

    # Without effect on the output.
    spaces_between_special_tokens: Flag = None
    client_metadata: Any = None
    """Codex's: which session and turn it is, for its makers."""
    access_programs: Any = None
    background_options: Any = None
    """When a background response may come at a discount, on OpenAI's servers; here it is begun at
    once."""
    max_tool_calls: Whole = None
    truncation: Text = None
    """disabled or auto; nothing is ever dropped from the input, and the reply says disabled."""

    # Where the server keeps responses.
    previous_response_id: Text = None

    background: Flag = None
    """Whether the response is computed in the background, and polled by its id."""

    conversation: str | ConversationParam | None = None
    """What goes on, by its id; the request's items and the answer's are added to it."""

    # Only at their neutral value.
    context_management: Any = None
    image: Any = None
    prompt: Any = None
    previous_input_messages: list[Any] | None = None
    previous_response: Any = None
    enable_response_messages: Flag = None
    vllm_xargs: Object = None


RULES = (
    UnsupportedField("moderation"),
    UnsupportedField("context_management", ([],)),
    UnsupportedField(
        "image", ({}, {"context_compression": "auto"}, {"context_compression": "disabled"})
    ),
    UnsupportedField("prompt"),
    UnsupportedField("previous_input_messages", ([],)),
    UnsupportedField("previous_response"),
    UnsupportedField("enable_response_messages", (False,)),
    UnsupportedField("vllm_xargs", ({},)),
)


def check(request: ResponsesRequest) -> None:
    """Checks what needs no conversation. Raises InvalidRequest."""
    check_unsupported(request, RULES)
    if request.conversation is not None and request.previous_response_id is not None:
        raise InvalidRequest(
            "conversation and previous_response_id exclude each other: a conversation goes on from "
            "all that is in it",
            param="previous_response_id",
        )
    options = request.stream_options
    if request.conversation is not None and options is not None and options.resumable:
        raise InvalidRequest(
            "stream_options.resumable can't be combined with conversation, which may be another by"
            " the time the stream goes on",
            param="stream_options.resumable",
            code="unsupported_value",
        )
    for name in request.include or ():
        if name not in INCLUDES:
            raise InvalidRequest(
                f"include contains {clip(name)}; allowed: {', '.join(INCLUDES)}", param="include"
            )
    text, thoughts = request.text or TextOptions(), request.reasoning or ReasoningOptions()
    check_verbosity("text.verbosity", text.verbosity)
    _one_of("truncation", request.truncation, TRUNCATIONS)
    _one_of("reasoning.summary", thoughts.summary, SUMMARIES)
    _one_of("reasoning.generate_summary", thoughts.generate_summary, SUMMARIES)


def _one_of(field: str, value: str | None, allowed: tuple[str, ...]) -> None:
    if value is not None and value not in allowed:
        raise InvalidRequest(
            f"{field} is {clip(value)}; allowed: {', '.join(allowed)}",
            param=field,
            code="invalid_value",
        )
