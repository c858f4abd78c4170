"""Turns Ollama's requests into those of a chat, and chat's errors into Ollama's form."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock_gateway.chat.messages import Message
from penstock_gateway.chat.request import ChatRequest
from penstock_gateway.ollama.request import (
    ChatMessage,
    OllamaChatRequest,
    OllamaFields,
    OllamaGenerateRequest,
    Options,
)
from penstock_gateway.request.structured_fields import JsonSchemaFormat, ResponseFormat

_RENAMED = (
    ("max_completion_tokens", "options.num_predict"),
    ("max_tokens", "options.num_predict"),
    ("repetition_penalty", "options.repeat_penalty"),
    ("response_format.json_schema.schema", "format"),
    ("response_format.json_schema", "format"),
    ("response_format", "format"),
    ("reasoning_effort", "think"),
    *(
        (name, f"options.{name}")
        for name in (
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "seed",
            "stop",
            "presence_penalty",
            "frequency_penalty",
        )
    ),
)


def of_chat(request: OllamaChatRequest) -> ChatRequest:
    """Raises InvalidRequest."""
    messages = [_message(message) for message in request.messages or ()]
    return _chat(request, messages, tools=request.tools or None)


def of_generate(request: OllamaGenerateRequest) -> ChatRequest:
    """Raises InvalidRequest."""
    asked = ChatMessage(role="user", content=request.prompt or "", images=request.images)
    messages = [_message(asked)]
    if request.system:
        messages.insert(0, {"role": "system", "content": request.system})
    return _chat(request, messages)


def in_own_words(error: InvalidRequest) -> InvalidRequest:
    """An error of chat's, in Ollama's names."""
    param, message = error.param or "", error.message
    for name, own in _RENAMED:
        if param.startswith(name):
            param, message = own + param[len(name) :], message.replace(name, own, 1)
            break
    return type(error)(message, param=param or None, code=error.code)


def _chat(request: OllamaFields, messages: list[dict[str, Any]], **more: Any) -> ChatRequest:
    options = request.options or Options()
    fields = {
        "messages": messages,
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "min_p": options.min_p,
        "seed": options.seed,
        "stop": options.stop,
        "repetition_penalty": options.repeat_penalty,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
        "reasoning_effort": request.think if isinstance(request.think, str) else None,
        "chat_template_kwargs": _variables(request),
        **more,
    }
    try:
        chat = msgspec.convert(fields, ChatRequest)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None
    return msgspec.structs.replace(chat, response_format=_format(request.format))


def _message(message: ChatMessage) -> dict[str, Any]:
    told: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.images:
        pictures = [
            {"type": "image_url", "image_url": {"url": _picture(data)}} for data in message.images
        ]
        told["content"] = [*pictures, {"type": "text", "text": message.content or ""}]
    if message.thinking is not None:
        told["reasoning_content"] = message.thinking
    if message.tool_calls:
        told["tool_calls"] = [
            {
                "id": call.id,
                "function": {
                    "name": call.function.name,
                    "arguments": msgspec.json.encode(call.function.arguments).decode(),
                },
            }
            for call in message.tool_calls
        ]
    if message.tool_name is not None:
        told["name"] = message.tool_name
    if message.tool_call_id is not None:
        told["tool_call_id"] = message.tool_call_id
    return msgspec.to_builtins(msgspec.convert(told, Message))


def _picture(data: str) -> str:
    """Base64, whose kind is found out by whoever decodes it; or a data: URL as it is."""
    return data if data.startswith("data:") else f"data:;base64,{data}"


def _variables(request: OllamaFields) -> dict[str, Any] | None:
    think = request.think
    if think is None:
        return None
    return {"enable_thinking": bool(think)}


def _format(given: str | dict[str, Any] | None) -> ResponseFormat | None:
    if not given:
        return None
    if isinstance(given, str):
        return ResponseFormat(type="json_object")
    named = JsonSchemaFormat(name="answer", schema=given)
    return ResponseFormat(type="json_schema", json_schema=named)
