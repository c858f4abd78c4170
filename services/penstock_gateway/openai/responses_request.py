"""The body of POST /v1/responses, and the conversation in it."""

from __future__ import annotations

import re
from typing import Any, NoReturn

import msgspec

from penstock.errors import InvalidRequest
from penstock_gateway.errors import clip
from penstock_gateway.openai.chat_request import ChatRequest
from penstock_gateway.openai.fields import Flag, Number, Object, RequestFields, Text, Whole
from penstock_gateway.openai.messages import Message
from penstock_gateway.openai.neutral import Neutral, require_neutral
from penstock_gateway.openai.structure_fields import JsonSchemaFormat, ResponseFormat

LOGPROBS = "message.output_text.logprobs"
INCLUDES = (LOGPROBS, "reasoning.encrypted_content")
STATELESS = "this server is stateless: it keeps no responses"


class InputPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of an input message; or of one of our own replies, sent back."""

    type: str
    text: str | None = None
    refusal: str | None = None
    annotations: Any = None
    logprobs: Any = None
    image_url: Any = None
    detail: Any = None
    file_id: Any = None
    file_url: Any = None
    file_data: Any = None
    filename: Any = None
    input_audio: Any = None


class InputItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """type: message (or nothing), function_call, function_call_output or reasoning."""

    type: str | None = None
    role: str | None = None
    content: str | list[InputPart] | None = None
    id: str | None = None
    status: str | None = None
    phase: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None
    summary: Any = None
    encrypted_content: Any = None


class TextFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """type: text, json_object or json_schema."""

    type: str
    name: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None
    description: str | None = None


class TextOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the answer's text looks like. verbosity: medium only."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ResponsesRequest(RequestFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields beside those of RequestFields."""

    # --- these work
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
    chat_template_kwargs: Object = None

    # --- without effect on the output
    parallel_tool_calls: Flag = None
    max_tool_calls: Whole = None

    # --- only at their neutral value
    previous_response_id: Text = None
    conversation: Any = None
    background: Flag = None
    context_management: Any = None
    prompt: Any = None
    reasoning: Any = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    truncation: Text = None


RULES = (
    Neutral("moderation"),
    Neutral("context_management", ([],)),
    Neutral("prompt"),
    Neutral("reasoning", ({},)),
    Neutral("tools", ([],)),
    Neutral("tool_choice", ("none", "auto")),
    Neutral("truncation", ("disabled",)),
)


def check(request: ResponsesRequest) -> None:
    """What can be told without a conversation. Raises InvalidRequest."""
    for field in ("store", "previous_response_id", "conversation", "background"):
        value = getattr(request, field)
        if value not in (None, False):
            raise InvalidRequest(
                f"{field} is {clip(value)}, but {STATELESS}; allowed: null"
                + (" or false" if field in ("store", "background") else ""),
                param=field,
                code="unsupported_value",
            )
    require_neutral(request, RULES)
    for name in request.include or ():
        if name not in INCLUDES:
            raise InvalidRequest(
                f"include holds {clip(name)}; allowed: {', '.join(INCLUDES)}", param="include"
            )
    verbosity = request.text.verbosity if request.text is not None else None
    if verbosity not in (None, "medium"):
        raise InvalidRequest(
            f"text.verbosity is {clip(verbosity)}, which is not supported; allowed: medium or null",
            param="text.verbosity",
            code="unsupported_value",
        )


class Conversation:
    """The same request in chat's terms, and the way back from chat's names to this request's.

    Raises InvalidRequest for an item that is none.
    """

    def __init__(self, request: ResponsesRequest) -> None:
        self._messages: list[dict[str, Any]] = []
        self._sources: list[str] = []
        if request.instructions:
            self._add({"role": "system", "content": request.instructions}, "instructions")
        if request.input is None:
            raise InvalidRequest(
                "input is missing", param="input", code="missing_required_parameter"
            )
        if isinstance(request.input, str):
            self._add({"role": "user", "content": request.input}, "input")
        else:
            for place, item in enumerate(request.input):
                self._take(item, f"input[{place}]")
        if not self._messages or self._sources == ["instructions"]:
            raise InvalidRequest("input is empty; it must hold at least one", param="input")
        wants_logprobs = LOGPROBS in (request.include or ())
        self.chat = ChatRequest(
            messages=[msgspec.convert(message, Message) for message in self._messages],
            max_completion_tokens=request.max_output_tokens,
            logprobs=wants_logprobs or request.top_logprobs is not None,
            response_format=_format(request.text),
            **{name: getattr(request, name) for name in _SAME},
        )

    def own_words(self, error: InvalidRequest) -> InvalidRequest:
        """An error of chat's, in the names of this request."""
        param, message = error.param or "", error.message
        for name, own in _RENAMED:
            if param.startswith(name):
                param, message = own + param[len(name) :], message.replace(name, own)
        place = re.match(r"messages\[(\d+)\]", param)
        if place is not None and int(place[1]) < len(self._sources):
            own, name = self._sources[int(place[1])], place[0]
            if not own.startswith("input["):
                name = name + ".content"  # It is a text of its own.
            param, message = param.replace(name, own), message.replace(name, own)
        elif param == "messages":
            param, message = "input", message.replace("messages", "input")
        return InvalidRequest(message, param=param or None, code=error.code)

    def _add(self, message: dict[str, Any], source: str) -> None:
        self._messages.append(message)
        self._sources.append(source)

    def _take(self, item: InputItem, where: str) -> None:
        match item.type:
            case None | "message":
                if item.role is None:
                    _missing(f"{where}.role")
                content = _content(item.content, f"{where}.content")
                self._add({"role": item.role, "content": content}, where)
            case "function_call":
                self._take_call(item, where)
            case "function_call_output":
                if item.call_id is None:
                    _missing(f"{where}.call_id")
                text = _content(item.output, f"{where}.output")
                told = {"role": "tool", "tool_call_id": item.call_id, "content": text}
                self._add(told, where)
            case "reasoning":
                pass  # Thoughts of an earlier turn: no template shows them again.
            case _:
                raise InvalidRequest(
                    f"{where}.type is {clip(item.type)}; allowed: message, function_call, "
                    "function_call_output, reasoning",
                    param=f"{where}.type",
                    code="invalid_value",
                )

    def _take_call(self, item: InputItem, where: str) -> None:
        for name in ("call_id", "name", "arguments"):
            if getattr(item, name) is None:
                _missing(f"{where}.{name}")
        function = {"name": item.name, "arguments": item.arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        last = self._messages[-1] if self._messages else None
        if last is not None and last["role"] == "assistant":
            last.setdefault("tool_calls", []).append(call)
        else:
            self._add({"role": "assistant", "content": "", "tool_calls": [call]}, where)


_SAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "top_logprobs",
    "chat_template_kwargs",
)
_RENAMED = (
    ("max_completion_tokens", "max_output_tokens"),
    ("max_tokens", "max_output_tokens"),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
)


def _format(text: TextOptions | None) -> ResponseFormat | None:
    given = text.format if text is not None else None
    if given is None or given.type == "text":
        return None
    if given.type not in ("json_object", "json_schema"):
        raise InvalidRequest(
            f"text.format.type is {clip(given.type)}; allowed: text, json_object, json_schema",
            param="text.format.type",
        )
    if given.type == "json_object":
        return ResponseFormat(type="json_object")
    if given.name is None:
        _missing("text.format.name")
    named = JsonSchemaFormat(
        name=given.name, schema=given.schema, strict=given.strict, description=given.description
    )
    return ResponseFormat(type="json_schema", json_schema=named)


def _content(content: str | list[InputPart] | None, where: str) -> str:
    if content is None:
        _missing(where)
    if isinstance(content, str):
        return content
    return "\n".join(_part(part, f"{where}[{place}]") for place, part in enumerate(content))


def _part(part: InputPart, where: str) -> str:
    if part.type in ("input_text", "output_text", "text") and part.text is not None:
        return part.text
    if part.type == "refusal" and part.refusal is not None:
        return part.refusal
    if part.type in ("input_image", "input_file", "input_audio"):
        raise InvalidRequest(
            f"{where} is a part of type {part.type}: media are not supported yet; allowed: "
            "input_text, output_text",
            param=where,
            code="unsupported_value",
        )
    if part.type in ("input_text", "output_text", "text", "refusal"):
        _missing(f"{where}.text")
    raise InvalidRequest(
        f"{where}.type is {clip(part.type)}; allowed: input_text, output_text",
        param=f"{where}.type",
        code="invalid_value",
    )


def _missing(where: str) -> NoReturn:
    raise InvalidRequest(f"{where} is missing", param=where, code="missing_required_parameter")
