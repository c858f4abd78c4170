"""Where a prompt ends that the model continues: after the last message's own text.

A mark is put there before the template is filled; in the filled text, it and what follows is cut
off.  Named and meant as in transformers: continue_final_message.
"""

from __future__ import annotations

from typing import Any, NoReturn

from penstock.errors import InvalidRequest

MARK = "CONTINUE_THE_FINAL_MESSAGE_HERE"
_SPACED = MARK + " "
"""The space tells whether the template trims messages: then it goes, and the text's own with it."""


def mark_last(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, the last with the mark at its end. Raises InvalidRequest."""
    *others, last = messages
    content = last.get("content")
    if isinstance(content, str):
        return [*others, {**last, "content": content + _SPACED}]
    parts = list(content or ())
    index = _last_text(parts)
    parts[index] = {**parts[index], "text": parts[index]["text"] + _SPACED}
    return [*others, {**last, "content": parts}]


def cut(text: str, messages: list[dict[str, Any]]) -> str:
    """The filled text up to the mark. Raises InvalidRequest where the template changed the message,
    so that it doesn't end in it."""
    content = messages[-1]["content"]
    final = content if isinstance(content, str) else content[_last_text(content)]["text"]
    at = text.rfind(MARK)
    if at < 0 or final.strip() not in text:
        _refuse("the chat template doesn't show the last message as it is")
    kept = text[:at]
    return kept if text.startswith(_SPACED, at) else kept.rstrip()


def _last_text(parts: list[Any]) -> int:
    for index in range(len(parts) - 1, -1, -1):
        if isinstance(parts[index], dict) and isinstance(parts[index].get("text"), str):
            return index
    _refuse("the last message has no text to continue")


def _refuse(reason: str) -> NoReturn:
    raise InvalidRequest(f"continue_final_message: {reason}", param="continue_final_message")
