"""Items of a conversation, as a request to respond brings them; one may stand for a conversation
before it."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import InvalidRequest


class InputPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of an input message; or of a reply, ours or another server's, sent back. Fields that
    are unknown here are skipped. image_url, detail, uuid: of an input_image.  file_data, a data:
    URI, file_url, filename: of an input_file.  stdout, stderr, outcome: of what a shell's command
    did, which has no type."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    outcome: Any = None
    image_url: Any = None
    input_audio: Any = None
    detail: Any = None
    uuid: Any = None
    file_id: Any = None
    file_data: Any = None
    file_url: Any = None
    filename: Any = None


class InputItem(msgspec.Struct, frozen=True, kw_only=True):
    """type: message (or nothing), a call or its output, reasoning, item_reference, or one of those
    that are left out. id: that an item has, or that of the one an item_reference means.  namespace:
    of a call's tool.  summary: of reasoning.  encrypted_content: of reasoning, and of a compaction.
    input, action, operation: of calls that are of no function.  tools: of additional_tools and
    tool_search_output.  Fields that are unknown here are skipped."""

    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: Any = None
    summary: list[InputPart] | None = None
    encrypted_content: str | None = None
    input: str | None = None
    action: Any = None
    operation: Any = None
    status: str | None = None
    tools: list[dict[str, Any]] | None = None
    output: str | list[InputPart] | dict[str, Any] | None = None


def without_nothing(item: InputItem) -> dict[str, Any]:
    """The item's fields, and its parts', without those of other kinds."""
    fields = _said(item)
    for name in ("content", "summary", "output"):
        parts = fields.get(name)
        if isinstance(parts, list):
            fields[name] = [_said(part) for part in parts]
    return fields


def as_shown(id: str, item: dict[str, Any]) -> dict[str, Any]:
    """The item as OpenAI shows it: with an id, unless it has one, a type, and what clients rely on;
    a message's text is a part."""
    made: dict[str, Any] = {"id": id, "type": "message", **item}
    for name, value in _RELIED_ON.get(made["type"], {}).items():
        made.setdefault(name, value)
    content = made.get("content")
    if isinstance(content, str):
        kind = "output_text" if made.get("role") == "assistant" else "input_text"
        content = [{"type": kind, "text": content}]
    if isinstance(content, list):
        made["content"] = [_shown_part(part) for part in content]
    return made


def _shown_part(part: dict[str, Any]) -> dict[str, Any]:
    said = {name: value for name, value in part.items() if value is not None}
    return {**_RELIED_ON.get(part.get("type"), {}), **said}


_RELIED_ON: dict[Any, dict[str, Any]] = {
    "message": {"status": "completed"},
    "function_call": {"status": "completed"},
    "function_call_output": {"status": "completed"},
    "reasoning": {"summary": []},
    "output_text": {"annotations": []},
    "input_image": {"detail": "auto"},
}
"""Fields of items and parts that clients may leave out, and that answers have."""


def _said(struct: msgspec.Struct) -> dict[str, Any]:
    return {
        name: value for name, value in msgspec.structs.asdict(struct).items() if value is not None
    }


COMPACTION = "compaction"
MADE_HERE = "penstock-summary:"
"""Stands before the text of a summary that this server's models wrote."""
QUESTION = (
    "Summarise this conversation for somebody who will continue it and sees nothing else of it: "
    "the task and its state, the facts, names, numbers, paths and decisions that are still needed, "
    "and what remains to be done. Write only the summary."
)


def summary_of(item: InputItem, where: str) -> str:
    """Raises InvalidRequest for one of another server's."""
    content = item.encrypted_content or ""
    if not content.startswith(MADE_HERE):
        raise InvalidRequest(
            f"{where}.encrypted_content isn't one of this server's: what others encrypted can't be "
            "read here; send the conversation itself, or compact it at /v1/responses/compact",
            param=f"{where}.encrypted_content",
            code="invalid_value",
        )
    return content.removeprefix(MADE_HERE)
