"""Values that are keys and values themselves, each with marks, as JSON text:

<place><city>Paris</city><tags><item>a</item><item>b</item></tags></place>
"""

from __future__ import annotations

import re
from typing import Any

from penstock.parsing.format import KeyedValues
from penstock.parsing.values import branch, is_text, json_string, parameter, typed, types_of

MAX_KEY = 512
MAX_DEPTH = 64
ITEM = "item"
"""The key of a list's values."""
_EMPTY = (("array", "[]"), ("object", "{}"))


def nested_json(text: str, marks: KeyedValues, schema: Any, root: Any, depth: int = 0) -> str:
    """A value's text as JSON. What isn't made of keys and values as it should be is one value, of
    the types that its schema allows.

    root: what the schema's references are in.
    """
    types = types_of(schema, root)
    members = None if is_text(types) or depth == MAX_DEPTH else _members(text, marks)
    if members is None:
        return typed(text, types)
    if not members and types and "string" not in types:
        return next((said for kind, said in _EMPTY if kind in types), typed(text, types))
    if members and _is_list(members, types):
        items = (branch(schema, root, "array") or {}).get("items")
        values = [nested_json(value, marks, items, root, depth + 1) for _, value in members]
        return f"[{', '.join(values)}]"
    if len(dict(members)) < len(members) or not members:
        return typed(text, types)
    whole = branch(schema, root, "object")
    values = [
        f"{json_string(key)}: {nested_json(value, marks, parameter(whole, key), root, depth + 1)}"
        for key, value in members
    ]
    return f"{{{', '.join(values)}}}"


def _is_list(members: list[tuple[str, str]], types: frozenset[str] | None) -> bool:
    return (types is None or "array" in types) and all(key == ITEM for key, _ in members)


def _members(text: str, marks: KeyedValues) -> list[tuple[str, str]] | None:
    """The keys and the texts of their values; None where there is anything else."""
    key_end, _ = marks.key_ends[0]
    found, rest = [], text.lstrip()
    while rest:
        key, mark, value = rest.removeprefix(marks.key).partition(key_end)
        begin, end = f"{marks.key}{key}{key_end}", marks.value.end.replace("KEY", key)
        if not rest.startswith(begin) or not mark or not 1 <= len(key) <= MAX_KEY:
            return None
        at = _ending(value, begin, end)
        if at is None:
            return None
        found.append((key, value[:at]))
        rest = value[at + len(end) :].lstrip()
    return found


def _ending(text: str, begin: str, end: str) -> int | None:
    """Returns the place of the mark that ends what has begun; the same may begin and end within.
    None if it isn't there."""
    depth = 0
    for match in re.finditer(f"({re.escape(begin)})|{re.escape(end)}", text):
        if match[1] is None and depth == 0:
            return match.start()
        depth += -1 if match[1] is None else 1
    return None
