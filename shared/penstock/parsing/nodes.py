"""The parts of a structural tag, in xgrammar's shape."""

from __future__ import annotations

from typing import Any

Node = dict[str, Any]
"""One format of a structural tag."""
ANY_TEXT: Node = {"type": "any_text"}


def schema_node(schema: Any) -> Node:
    return {"type": "json_schema", "json_schema": schema}


def text_node(text: str) -> Node:
    """Exactly this text."""
    return {"type": "const_string", "value": text}


def sequence(*nodes: Node) -> Node:
    return {"type": "sequence", "elements": list(nodes) or [text_node("")]}


def either(*nodes: Node) -> Node:
    return nodes[0] if len(nodes) == 1 else {"type": "or", "elements": list(nodes)}


def until(end: str, *, begin: str = "") -> Node:
    """Any text, and the mark that ends it."""
    return {"type": "tag", "begin": begin, "content": ANY_TEXT, "end": end}
