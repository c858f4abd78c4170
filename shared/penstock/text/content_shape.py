"""Whether a chat template takes a message's content as one text, as a list of parts, or both.

No template says so.  It is shown a message of either shape, and what it makes of that tells: one
that loops over parts shows nothing of a text, and one that prints a text prints a list's brackets.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.errors import InvalidRequest

_WORD = "QUINCE"


@dataclass(frozen=True, slots=True)
class ContentShape:
    """texts: content may be a text.  parts: it may be a list of {"type": "text", "text": …} and
    {"type": "image"}, or another kind of media."""

    texts: bool
    parts: bool


def one_message(content: Any) -> list[dict[str, Any]]:
    """A conversation of the user's."""
    return [{"role": "user", "content": content}]


def shape_of(render: Callable[[Any], str]) -> ContentShape:
    """render: fills the template with one message of that content; may raise InvalidRequest."""
    texts = _shows(render, _WORD)
    parts = _shows(render, [{"type": "text", "text": _WORD}])
    return ContentShape(texts or not parts, parts)


def takes_thoughts(render: Callable[[list[dict[str, Any]]], str]) -> bool:
    """Whether an assistant's content may have parts that are thoughts, as Ministral's may.
    render: fills the template with a conversation; may raise InvalidRequest."""
    said = {"role": "assistant", "content": [thought_part(_WORD), {"type": "text", "text": "A"}]}
    return _shows(lambda told: render([*one_message("Q"), told, *one_message("R")]), said)


def thought_part(thoughts: str) -> dict[str, Any]:
    """Thoughts as a part of a message's content."""
    return {"type": "thinking", "thinking": thoughts}


def _shows(render: Callable[[Any], str], content: Any) -> bool:
    try:
        text = render(content)
    except InvalidRequest:
        return False
    return _WORD in text and "'type'" not in text and '"type"' not in text


@dataclass(frozen=True, slots=True)
class Marks:
    """What stands for media in a text, where a template takes no parts. No client can know it, and
    so write it."""

    secret: str

    def of(self, kind: str) -> str:
        """kind: of media."""
        return f"{kind.upper()}{self.secret}"


def stand_ins() -> Marks:
    """New ones."""
    return Marks(secrets.token_hex(16))


def media_part(kind: str) -> dict[str, Any]:
    """An item's part of a message, as templates look for it."""
    # Qwen2-Audio's looks for the key that names the sound, and others for the type.
    return {"type": kind, "audio_url": ""} if kind == "audio" else {"type": kind}


def shaped(
    messages: list[dict[str, Any]], shape: ContentShape, marks: Marks
) -> list[dict[str, Any]]:
    """The messages with contents that the template takes."""
    return [{**each, "content": _content(each["content"], shape, marks)} for each in messages]


def _content(content: Any, shape: ContentShape, marks: Marks) -> Any:
    if isinstance(content, str):
        return content if shape.texts else [{"type": "text", "text": content}]
    if shape.parts:
        return content
    return "\n".join(
        part["text"] if part["type"] == "text" else marks.of(part["type"]) for part in content
    )
