"""An answer in the form in which two runs are compared: without what is drawn or depends on time.

A whole answer is its JSON with those fields masked. A stream is what it comes to: which token
shares an event with which depends on the machine's load, so the events of each choice are joined,
field by field, in the order in which the fields first came.
"""

from __future__ import annotations

import json
import re
from typing import Any

TIMES = {"created", "created_at", "completed_at"}
DEPENDS_ON_OTHERS = {
    *("cached_tokens", "sequence_number", "pid", "system_fingerprint", "arithmetic"),
}
"""Such as how much of a prompt others had brought, how many events a text came in, or which build
computed it."""
DRAWN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?=[A-Za-z]*[0-9])[0-9A-Za-z]{12,}")
"""The random part of an id."""
JOINED = {"content", "reasoning", "reasoning_content", "text", "arguments", "delta"}
"""Fields of which each event of a stream brings a piece."""
GROUPED_BY = ("choices", "type", "output_index", "content_index")


def answer(status: int, headers: list[tuple[str, str]], body: bytes) -> dict[str, Any]:
    """Status, type, names of the headers, and body."""
    kind = dict(headers).get("content-type", "")
    stream = kind.startswith("text/event-stream")
    return {
        "status": status,
        "type": kind,
        "headers": sorted({name for name, _ in headers}),
        "body": _stream(body) if stream else _masked(_parsed(body.decode())),
    }


def shape(recorded: dict[str, Any]) -> Any:
    """What must be equal even where the model's numbers may differ: status, type, headers."""
    return {name: recorded[name] for name in ("status", "type", "headers")}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _masked(value: Any, name: str = "") -> Any:
    if name in TIMES or name in DEPENDS_ON_OTHERS:
        return None if value is None else "*"
    if name == "id" or name.endswith("_id"):
        return DRAWN.sub("*", value) if isinstance(value, str) else value
    if isinstance(value, dict):
        return {each: _masked(inner, each) for each, inner in value.items()}
    if isinstance(value, list):
        return [_masked(inner) for inner in value]
    return value


def _stream(body: bytes) -> dict[str, Any]:
    """fields: names of an event's lines; groups: key of a group -> path -> what came there."""
    fields: list[list[str]] = []
    groups: dict[str, dict[str, Any]] = {}
    for event in body.decode().split("\n\n"):
        lines = [line.partition(":") for line in event.split("\n") if line]
        names = [name for name, _, _ in lines]
        if names not in fields:
            fields.append(names)
        data = "".join(value[1:] for name, _, value in lines if name == "data")
        parsed = _parsed(data) if data else None
        _join(groups.setdefault(_group(parsed), {}), _masked(parsed), "", "")
    return {"fields": fields, "groups": dict(sorted(groups.items()))}


def _group(event: Any) -> str:
    if not isinstance(event, dict):
        return ""
    choices = event.get("choices")
    if isinstance(choices, list):
        return f"choice {[choice.get('index') for choice in choices]}"
    return " ".join(f"{event[name]}" for name in GROUPED_BY if name in event)


def _join(seen: dict[str, Any], value: Any, path: str, name: str) -> None:
    if isinstance(value, dict) and value:
        for each, inner in value.items():
            _join(seen, inner, f"{path}.{each}", each)
    elif isinstance(value, list) and name in ("choices", "tool_calls"):
        for inner in value:
            at = inner.get("index", 0) if isinstance(inner, dict) else 0
            _join(seen, inner, f"{path}[{at}]", "")
    elif isinstance(value, list):
        seen.setdefault(path, []).extend(value)
    elif isinstance(value, str) and name in JOINED:
        seen[path] = seen.get(path, "") + value if isinstance(seen.get(path), str) else value
    else:
        came = seen.setdefault(path, [])
        if isinstance(came, list) and (not came or came[-1] != value):
            came.append(value)
