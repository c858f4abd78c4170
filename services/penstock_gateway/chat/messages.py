"""The messages of a chat: what they may contain, and the plain dicts for the chat template.

Clients send back what other servers gave them, so unknown fields of messages, their parts and their
calls are skipped.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock.media.sources import MediaSource
from penstock.model.media_facts import MediaKind
from penstock.text.arrangement import Traits
from penstock.text.call_arguments import written_arguments
from penstock.text.template_shape import media_part
from penstock_gateway.chat.custom_tools import history_arguments
from penstock_gateway.http.errors import clip
from penstock_gateway.request.body import TextsAmount
from penstock_gateway.request.media_parts import (
    OTHER_MEDIA,
    is_document,
    kind_of,
    media_source,
    refuse_other,
)

ROLES = ("system", "developer", "user", "assistant", "tool")
_MAY_SAY_NOTHING = ("assistant", "tool")
"""Roles whose messages may have no content: an answer of calls or thoughts alone, as we give it
ourselves, and the result of a tool that returns nothing."""
_SYSTEM = ("system", "developer")
_TEXT_PARTS = ("text", "input_text", "output_text")
_TALLY = re.compile(r"x-anthropic-billing-header:[^\n]*\n*")
"""A line that Claude Code puts before its system prompt, for its maker's accounts: with a number
that is another in each request, it would leave nothing of a conversation in the prefix cache."""


AT_A_TIME = 512
"""Messages between which other requests get no turn: a millisecond or two."""


class ContentPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a message's content: text, a picture, a sound, a video, or thoughts, as Mistral's
    API has them. uuid: the client's own name for a medium."""

    type: str
    text: str | None = None
    refusal: str | None = None
    thinking: Any = None
    image_url: Any = None
    audio_url: Any = None
    video_url: Any = None
    input_audio: Any = None
    file: Any = None
    detail: Any = None
    uuid: Any = None


class MessageFunction(msgspec.Struct, frozen=True, kw_only=True):
    """arguments: a JSON object, as text, or as it is."""

    name: str
    arguments: str | dict[str, Any] | None = None


class MessageCustom(msgspec.Struct, frozen=True, kw_only=True):
    """input: any text."""

    name: str
    input: str


NO_CALL = MessageFunction(name="")


class MessageToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the model made, as the client got it: of a function, or of a custom tool."""

    function: MessageFunction = NO_CALL
    id: str | None = None
    type: str = "function"
    custom: MessageCustom | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message of any role, as a client sends it, or sends back what it was given."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    function_call: Any = None
    audio: Any = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class TemplateMessages:
    """Checked messages as a chat template is given them, and what else they bring."""

    __slots__ = ("messages", "sources", "traits")

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.sources: list[MediaSource] = []
        """The media, in order; a message that has some has a list of parts as its content."""
        self.traits = Traits()

    def add(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self.traits.add(message)


Fill = Callable[[list[Message]], Awaitable[list[Message]]]
"""Returns the messages with a text in the place of each document."""


async def template_messages(messages: list[Message], most: int, fill: Fill) -> TemplateMessages:
    """The messages as dicts of strings: each is looked at once, some at a time. most: messages
    allowed.  fill: for messages that have documents.

    A developer message is a system message under OpenAI's newer name.  Raises InvalidRequest.
    """
    if not messages:
        raise InvalidRequest(
            "messages is empty; it must have at least one message", param="messages"
        )
    if len(messages) > most:
        raise InvalidRequest(
            f"messages has {len(messages)} entries; at most {most} are allowed",
            param="messages",
            code="context_length_exceeded",
        )
    found, amount, filled = TemplateMessages(), TextsAmount(), False
    tallies: list[dict[str, Any]] = []
    for index in range(len(messages)):
        message, content = messages[index], messages[index].content
        if not filled and isinstance(content, list) and any(map(is_document, content)):
            messages, filled = await fill(messages), True
            message = messages[index]
        plain = _template_message(message, f"messages[{index}]", found.sources, amount)
        if message.role in _SYSTEM and _only_tally(message):
            tallies.append(plain)
        else:
            found.add(plain)
        if index % AT_A_TIME == AT_A_TIME - 1:
            await asyncio.sleep(0)
    if not found.messages:
        for plain in tallies:
            found.add(plain)
    return found


def check_role(role: str, where: str) -> None:
    """Raises InvalidRequest for a role that no message has. where: the message's place."""
    if role not in ROLES:
        raise InvalidRequest(
            f"{where}.role is {clip(role)}; allowed: {', '.join(ROLES)}",
            param=f"{where}.role",
            code="invalid_value",
        )


def _template_message(
    message: Message, where: str, sources: list[MediaSource], amount: TextsAmount
) -> dict[str, Any]:
    if message.role not in ROLES:
        check_role(message.role, where)
    if message.function_call or message.audio:
        _refuse_retired(message, where)
    if message.role == "user" and message.content == []:
        raise InvalidRequest(
            f"{where}.content is an empty list; it must have at least one part",
            param=f"{where}.content",
        )
    content: str | list[dict[str, Any]]
    if isinstance(message.content, str) and message.role not in _SYSTEM:
        content = message.content
    else:
        content = _content(message, where, sources)
    role = "system" if message.role == "developer" else message.role
    plain: dict[str, Any] = {"role": role, "content": content}
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    thoughts = message.reasoning_content or message.reasoning or None
    if thoughts is None and isinstance(message.content, list):
        thoughts = _thoughts(message, where)
    if thoughts is not None:
        plain["reasoning_content"] = thoughts
    if message.tool_calls:
        plain["tool_calls"] = _tool_calls(message, where, amount)
    return plain


def _refuse_retired(message: Message, where: str) -> None:
    for field, instead in (("function_call", "send tool_calls"), ("audio", "send text")):
        if getattr(message, field):
            raise InvalidRequest(
                f"{where}.{field} is not supported; {instead}",
                param=f"{where}.{field}",
                code="unsupported_value",
            )


def _tool_calls(message: Message, where: str, amount: TextsAmount) -> list[dict[str, Any]]:
    """The calls as templates expect them: arguments as objects, not as the text that clients
    have."""
    if message.role != "assistant":
        raise InvalidRequest(
            f"{where}.tool_calls is allowed only in assistant messages, not with role "
            f"{message.role}",
            param=f"{where}.tool_calls",
        )
    calls = []
    for index, call in enumerate(message.tool_calls or ()):
        place = f"{where}.tool_calls[{index}]"
        name, text, field = _called(call, place)
        amount.add(text, f"{place}.{field}")
        function = {"name": name, "arguments": written_arguments(text)}
        plain: dict[str, Any] = {"type": "function", "function": function}
        if call.id is not None:
            plain["id"] = call.id
        calls.append(plain)
    return calls


def _called(call: MessageToolCall, where: str) -> tuple[str, str | None, str]:
    """The name of the function that was called, its arguments as JSON, and the field that they are
    from. Raises InvalidRequest."""
    if call.custom is not None:
        return call.custom.name, history_arguments(call.custom.input), "custom.input"
    if call.function is NO_CALL:
        field = "custom" if call.type == "custom" else "function"
        raise InvalidRequest(
            f"{where}.{field} is missing",
            param=f"{where}.{field}",
            code="missing_required_parameter",
        )
    text = call.function.arguments
    if isinstance(text, dict):
        text = msgspec.json.encode(text).decode()
    return call.function.name, text, "function.arguments"


def _only_tally(message: Message) -> bool:
    """Whether nothing is left of a system message without the client's own line."""
    if not message.content:
        return False
    content = message.content
    texts = [content] if isinstance(content, str) else [part.text or "" for part in content]
    return all(_TALLY.fullmatch(text) for text in texts)


def _content(
    message: Message, where: str, sources: list[MediaSource]
) -> str | list[dict[str, Any]]:
    content, system = message.content, message.role in _SYSTEM
    if isinstance(content, str):
        return _TALLY.sub("", content, count=1) if system and _TALLY.match(content) else content
    if content is None and message.role in _MAY_SAY_NOTHING:
        return message.refusal or ""
    if content is None:
        raise InvalidRequest(
            f"{where}.content is missing; it must be a string or a list of parts",
            param=f"{where}.content",
        )
    parts = [
        (f"{where}.content[{i}]", part)
        for i, part in enumerate(content)
        if not _is_thought(message, part)
    ]
    kinds = [kind_of(part, at) for at, part in parts]
    if not any(kinds):
        texts = [_part_text(part, at) for at, part in parts]
        if system and texts and _TALLY.match(texts[0]):
            rest = _TALLY.sub("", texts[0], count=1)
            texts[:1] = [rest] if rest else []
        return "\n".join(texts)
    return [_part(part, kind, at, sources) for (at, part), kind in zip(parts, kinds, strict=True)]


def _is_thought(message: Message, part: ContentPart) -> bool:
    return message.role == "assistant" and part.type == "thinking"


def _thoughts(message: Message, where: str) -> str | None:
    """Thoughts among an assistant message's parts, joined by line breaks; None: it has none."""
    content = message.content if isinstance(message.content, list) else []
    found = [
        _thought(part.thinking, f"{where}.content[{i}].thinking")
        for i, part in enumerate(content)
        if _is_thought(message, part)
    ]
    return "\n".join(found) or None


def _thought(given: Any, where: str) -> str:
    """A text, or parts of text."""
    parts = given if isinstance(given, list) else [{"text": given}]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    said = [text for text in texts if isinstance(text, str)]
    if len(said) < len(texts):
        raise InvalidRequest(
            f"{where} must be a string or a list of text parts",
            param=where,
            code="invalid_value",
        )
    return "".join(said)


def _part(
    part: ContentPart, kind: MediaKind | None, where: str, sources: list[MediaSource]
) -> dict[str, Any]:
    """A part as templates expect it, which have a placeholder for each item of media."""
    if kind is not None:
        sources.append(media_source(part, kind, where))
        return media_part(kind)
    return {"type": "text", "text": _part_text(part, where)}


def _part_text(part: ContentPart, where: str) -> str:
    if part.type in OTHER_MEDIA:
        raise refuse_other(part.type, where)
    if part.type == "refusal" and part.refusal is not None:
        return part.refusal
    if part.type not in _TEXT_PARTS:
        raise InvalidRequest(
            f"{where}.type is {clip(part.type)}; allowed: text, image_url, input_audio, audio_url, "
            "video_url, file",
            param=f"{where}.type",
            code="invalid_value",
        )
    if part.text is None:
        raise InvalidRequest(f"{where}.text is missing", param=f"{where}.text")
    return part.text
