"""The parts of a structural tag, in xgrammar's shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Node = dict[str, Any]
"""A format of a structural tag, as JSON."""
ANY_TEXT: Node = {"type": "any_text"}
MAX_LENGTH = 1000
"""Characters that a text without quotes may have to have, or not to have."""
LENGTHS = frozenset({"minLength", "maxLength"})


@dataclass(frozen=True, slots=True)
class TextInput:
    """Arguments that are one text, held to a grammar. They stand where others' schema does.

    name: the argument's.  lark: the grammar, in llguidance's dialect of Lark.
    """

    name: str
    lark: str

    def node(self) -> Node:
        """The arguments as JSON: an object with this text."""
        begin = rf'\{{ ?"{self.name}" ?: ?"'
        text = {"type": "lark", "grammar": self.lark}
        return sequence({"type": "regex", "pattern": begin}, text, _TEXT_END)


_TEXT_END: Node = {"type": "regex", "pattern": r'" ?\}'}


def arguments_of(schema: Any) -> Node:
    """Arguments as JSON. schema: of a tool's; TextInput; or None, where they are any."""
    if isinstance(schema, TextInput):
        return schema.node()
    return schema_node({"type": "object"} if schema is None else schema)


def schema_node(schema: Any) -> Node:
    return {"type": "json_schema", "json_schema": schema}


def text_node(text: str) -> Node:
    """Exactly this text."""
    return {"type": "const_string", "value": text}


def sequence(*nodes: Node) -> Node:
    return {"type": "sequence", "elements": list(nodes) or [text_node("")]}


def either(*nodes: Node) -> Node:
    return nodes[0] if len(nodes) == 1 else {"type": "or", "elements": list(nodes)}


def until(end: str, *, begin: str = "", text: Node = ANY_TEXT) -> Node:
    """Any text, and the mark that ends it. text: ANY_TEXT or `bounded_text`."""
    return {"type": "tag", "begin": begin, "content": text, "end": end}


def bounded_text(schema: dict[str, Any], without: str) -> Node | None:
    """Any text of a schema's lengths, which are ours alone, that doesn't hold a mark. None where
    they are no lengths that can be followed."""
    low, high = schema.get("minLength", 0), schema.get("maxLength", MAX_LENGTH)
    if type(low) is not int or type(high) is not int or not 0 <= low <= high:
        return None
    if low > MAX_LENGTH or ("maxLength" in schema and high > MAX_LENGTH):
        return None
    node = {"type": "any_text", "without": without, "min_length": low}
    return {**node, "max_length": high} if "maxLength" in schema else node
