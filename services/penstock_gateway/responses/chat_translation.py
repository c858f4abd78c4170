"""Turns a request for a response into a chat request, and chat's errors into this request's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec

from penstock.errors import InvalidRequest
from penstock_gateway.chat.messages import Message
from penstock_gateway.chat.request import ChatRequest
from penstock_gateway.http.errors import clip
from penstock_gateway.request.structured_fields import JsonSchemaFormat, ResponseFormat
from penstock_gateway.responses.request import (
    LOGPROBS,
    STATELESS,
    InputItem,
    InputPart,
    ResponsesRequest,
    TextOptions,
)
from penstock_gateway.responses.tools import chat_choice, function_tools


class ChatTranslation:
    """The same request in chat's terms, and the way back from chat's names to this request's.

    before: items of the conversation that it goes on from.  Raises InvalidRequest for an item that
    is none.
    """

    def __init__(self, request: ResponsesRequest, before: Sequence[InputItem] = ()) -> None:
        self.tools = function_tools(request.tools)
        self._messages: list[dict[str, Any]] = []
        self._sources: list[str] = []
        self._calls: dict[tuple[int, int], str] = {}
        """Where the item of a message's call is."""
        self._thoughts: list[str] = []
        """Of the assistant, whose message is still to come."""
        if request.instructions:
            self._add({"role": "system", "content": request.instructions}, "instructions")
        for item in before:
            self._take(item, PREVIOUS)
        known = len(self._sources), len(self._calls)
        if request.input is None:
            raise InvalidRequest(
                "input is missing", param="input", code="missing_required_parameter"
            )
        if isinstance(request.input, str):
            self._add({"role": "user", "content": request.input}, "input")
        else:
            for place, item in enumerate(request.input):
                self._take(item, f"input[{place}]")
        if (len(self._sources), len(self._calls)) == known:
            raise InvalidRequest("input is empty; it must have at least one item", param="input")
        wants_logprobs = LOGPROBS in (request.include or ())
        self.chat = ChatRequest(
            messages=[msgspec.convert(message, Message) for message in self._messages],
            max_completion_tokens=request.max_output_tokens,
            logprobs=wants_logprobs or request.top_logprobs is not None,
            response_format=_format(request.text),
            tools=[tool.for_chat() for tool in self.tools] or None,
            tool_choice=chat_choice(request.tool_choice),
            reasoning_effort=request.reasoning.effort if request.reasoning is not None else None,
            **{name: getattr(request, name) for name in _SAME},
        )

    def own_words(self, error: InvalidRequest) -> InvalidRequest:
        """An error of chat's, in the names of this request."""
        param, message = error.param or "", error.message
        for name, own in _REWORDED:
            message = message.replace(name, own)
        param, message = self._own_place(param, message)
        for name, own in _RENAMED:
            if param.startswith(name):
                param, message = own + param[len(name) :], message.replace(name, own)
        place = re.match(r"messages\[(\d+)\]", param)
        if place is not None and int(place[1]) < len(self._sources):
            own, name = self._sources[int(place[1])], place[0]
            if own == PREVIOUS:
                return type(error)(
                    f"{PREVIOUS}: a message of that conversation is invalid: {message}",
                    param=PREVIOUS,
                    code=error.code,
                )
            if not own.startswith("input["):
                name = name + ".content"  # It is a text of its own.
            param, message = param.replace(name, own), message.replace(name, own)
        elif param == "messages":
            param, message = "input", message.replace("messages", "input")
        return type(error)(message, param=param or None, code=error.code)

    def _own_place(self, param: str, message: str) -> tuple[str, str]:
        """Of a field of a function, which is flat here."""
        tool = re.match(r"(tools\[\d+\])\.function\b", param)
        if tool is not None:
            return param.replace(tool[0], tool[1]), message.replace(tool[0], tool[1])
        call = re.match(r"messages\[(\d+)\]\.tool_calls\[(\d+)\]\.function\b", param)
        own = None if call is None else self._calls.get((int(call[1]), int(call[2])))
        if call is None or own is None:
            return param, message
        return param.replace(call[0], own), message.replace(call[0], own)

    def _add(self, message: dict[str, Any], source: str) -> None:
        thoughts, self._thoughts = "\n".join(self._thoughts), []
        if thoughts and message["role"] == "assistant":
            message["reasoning_content"] = thoughts
        elif thoughts and self._messages:
            # A turn that was cut short while the model still thought.
            self._add({"role": "assistant", "content": "", "reasoning_content": thoughts}, source)
        self._messages.append(message)
        self._sources.append(source)

    def _take(self, item: InputItem, where: str) -> None:
        match item.type:
            case None | "message":
                if item.role is None:
                    _missing(f"{where}.role")
                self._add({"role": item.role, "content": _message_content(item, where)}, where)
            case "function_call":
                self._take_call(item, where)
            case "function_call_output":
                if item.call_id is None:
                    _missing(f"{where}.call_id")
                text = _content(item.output, f"{where}.output")
                told = {"role": "tool", "tool_call_id": item.call_id, "content": text}
                self._add(told, where)
            case "reasoning":
                if item.content:
                    # A template may show the model those of the turn that is going on.
                    self._thoughts.append(_content(item.content, f"{where}.content"))
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
        if last is None or last["role"] != "assistant" or self._thoughts:
            last = {"role": "assistant", "content": ""}
            self._add(last, where)
        calls = last.setdefault("tool_calls", [])
        self._calls[len(self._messages) - 1, len(calls)] = where
        calls.append(call)


PREVIOUS = "previous_response_id"
TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_MEDIA = ("input_image", "input_audio", "input_file")
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
    "parallel_tool_calls",
)
_REWORDED = (("response_format or structured_outputs", "text.format"),)
_RENAMED = (
    ("max_completion_tokens", "max_output_tokens"),
    ("max_tokens", "max_output_tokens"),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    ("tool_choice.allowed_tools", "tool_choice"),
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


def _message_content(item: InputItem, where: str) -> str | list[dict[str, Any]]:
    """As chat has it: a text, or a list of parts if there are media."""
    content, place = item.content, f"{where}.content"
    if not isinstance(content, list) or all(part.type not in _MEDIA for part in content):
        return _content(content, place)
    return [_chat_part(part, f"{place}[{number}]") for number, part in enumerate(content)]


def _chat_part(part: InputPart, where: str) -> dict[str, Any]:
    if part.type not in _MEDIA:
        return {"type": "text", "text": _part(part, where)}
    if part.file_id is not None:
        raise InvalidRequest(
            f"{where}.file_id refers to a file, but {STATELESS}; send the file itself",
            param=f"{where}.file_id",
            code="unsupported_value",
        )
    if part.type == "input_file":
        if part.file_data is None:
            _missing(f"{where}.file_data")
        return {"type": "file", "file": {"file_data": part.file_data}, "uuid": part.uuid}
    return {
        "type": part.type,
        "image_url": part.image_url,
        "input_audio": part.input_audio,
        "detail": part.detail,
        "uuid": part.uuid,
    }


def _content(content: str | list[InputPart] | None, where: str) -> str:
    if content is None:
        _missing(where)
    if isinstance(content, str):
        return content
    return "\n".join(_part(part, f"{where}[{place}]") for place, part in enumerate(content))


def _part(part: InputPart, where: str) -> str:
    if part.type in TEXTS and part.text is not None:
        return part.text
    if part.type == "refusal" and part.refusal is not None:
        return part.refusal
    if part.type in _MEDIA:
        raise InvalidRequest(
            f"{where} has type {part.type}, which is not supported here; allowed: "
            "input_text, output_text, and in messages input_image, input_audio and input_file",
            param=where,
            code="unsupported_value",
        )
    if part.type in (*TEXTS, "refusal"):
        _missing(f"{where}.text")
    raise InvalidRequest(
        f"{where}.type is {clip(part.type)}; allowed: input_text, output_text, input_image, "
        "input_audio, input_file",
        param=f"{where}.type",
        code="invalid_value",
    )


def _missing(where: str) -> NoReturn:
    raise InvalidRequest(f"{where} is missing", param=where, code="missing_required_parameter")
