"""Reading server-sent events in tests, independently of the code under test."""

from __future__ import annotations

import json
from typing import Any


def parse(body: str) -> list[Any]:
    """The JSON of each event; the last must be [DONE], which is left out. Comments are skipped."""
    events = []
    assert body.endswith("\n\n")
    for block in body[:-2].split("\n\n"):
        while block.startswith(":"):
            block = block.partition("\n")[2]
        if not block:
            continue
        assert block.startswith("data: ")
        assert "\n" not in block
        events.append(block.removeprefix("data: "))
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


def text_of(chunks: list[Any], choice: int = 0) -> str:
    """The text of a choice, of either endpoint."""
    text = ""
    for chunk in chunks:
        for piece in chunk["choices"]:
            if piece["index"] == choice:
                text += piece["text"] if "text" in piece else piece["delta"].get("content", "")
    return text
