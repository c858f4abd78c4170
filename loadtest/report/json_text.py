"""JSON as result files have it: in few lines, and so that a difference shows where it is."""

from __future__ import annotations

import json
from typing import Any

WIDTH = 100
"""Characters of a line that holds a whole object or array. Arrays of numbers have any length."""


def json_text(value: Any, indent: int = 0) -> str:
    """value: of what json takes.  indent: blanks before it."""
    flat = json.dumps(value, ensure_ascii=False)
    if indent + len(flat) <= WIDTH or _holds_numbers(value) or not isinstance(value, list | dict):
        return flat
    if isinstance(value, dict):
        names = (json.dumps(str(name), ensure_ascii=False) for name in value)
        own = [json_text(each, indent + 1) for each in value.values()]
        return _over_lines(
            "{", [f"{n}: {each}" for n, each in zip(names, own, strict=True)], "}", indent
        )
    return _over_lines("[", [json_text(each, indent + 1) for each in value], "]", indent)


def _holds_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(
        each is None or isinstance(each, int | float) for each in value
    )


def _over_lines(begin: str, parts: list[str], end: str, indent: int) -> str:
    blanks = "\n" + " " * indent
    return f"{begin}{blanks} " + f",{blanks} ".join(parts) + f"{blanks}{end}"
