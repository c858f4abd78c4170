"""The messages of a chat: what they may hold, and the plain dicts that a chat template takes."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock_gateway.errors import clip

ROLES = ("system", "developer", "user", "assistant", "tool")
_TEXT_PARTS = ("text", "input_text", "output_text")
_MEDIA_PARTS = (
    "image_url",
    "input_image",
    "image_embeds",
    "input_audio",
    "audio_url",
    "audio_embeds",
    "video_url",
    "file",
)


class ContentPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part of a message's content. Only text parts are supported yet."""

    type: str
    text: str | None = None
    image_url: Any = None
    image_embeds: Any = None
    input_audio: Any = None
    audio_url: Any = None
    audio_embeds: Any = None
    video_url: Any = None
    file: Any = None
    file_id: Any = None
    detail: Any = None
    refusal: str | None = None
    uuid: str | None = None
    annotations: Any = None
    cache_control: Any = None
    prompt_cache_breakpoint: Any = None


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message of any role, as a client sends it, or sends back what it was given."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None
    audio: Any = None
    refusal: str | None = None
    annotations: Any = None
    reasoning: str | None = None
    reasoning_content: str | None = None


def template_messages(messages: list[Message], most: int) -> list[dict[str, Any]]:
    """Checked messages as dicts of strings. most: messages allowed.

    A developer message is a system message under OpenAI's newer name.  Raises InvalidRequest.
    """
    if not messages:
        raise InvalidRequest("messages is empty; it must hold at least one", param="messages")
    if len(messages) > most:
        raise InvalidRequest(
            f"messages holds {len(messages)} messages; at most {most} are allowed",
            param="messages",
            code="context_length_exceeded",
        )
    return [_template_message(m, f"messages[{i}]") for i, m in enumerate(messages)]


def characters(messages: list[dict[str, Any]]) -> int:
    """How much text there is to tokenise."""
    return sum(len(message["content"]) for message in messages)


def _template_message(message: Message, where: str) -> dict[str, Any]:
    if message.role not in ROLES:
        raise InvalidRequest(
            f"{where}.role is {clip(message.role)}; allowed: {', '.join(ROLES)}",
            param=f"{where}.role",
            code="invalid_value",
        )
    for field in ("tool_calls", "function_call", "audio"):
        if getattr(message, field):
            raise InvalidRequest(
                f"{where}.{field} is not supported yet; allowed: null",
                param=f"{where}.{field}",
                code="unsupported_value",
            )
    text = _text(message, where)
    if message.role == "user" and not text:
        raise InvalidRequest(f"{where}.content, a user message, is empty", param=f"{where}.content")
    plain = {"role": "system" if message.role == "developer" else message.role, "content": text}
    for field in ("name", "tool_call_id", "reasoning_content"):
        value = getattr(message, field)
        if value is not None:
            plain[field] = value
    return plain


def _text(message: Message, where: str) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    if content is None:
        raise InvalidRequest(
            f"{where}.content is missing; it must be a string or a list of text parts",
            param=f"{where}.content",
        )
    return "\n".join(_part_text(p, f"{where}.content[{i}]") for i, p in enumerate(content))


def _part_text(part: ContentPart, where: str) -> str:
    if part.type in _MEDIA_PARTS:
        raise InvalidRequest(
            f"{where} is a part of type {part.type}: media are not supported yet; allowed: text",
            param=where,
            code="unsupported_value",
        )
    if part.type == "refusal" and part.refusal is not None:
        return part.refusal
    if part.type not in _TEXT_PARTS:
        raise InvalidRequest(
            f"{where}.type is {clip(part.type)}; allowed: text",
            param=f"{where}.type",
            code="invalid_value",
        )
    if part.text is None:
        raise InvalidRequest(f"{where}.text is missing", param=f"{where}.text")
    return part.text
