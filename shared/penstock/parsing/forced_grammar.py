"""The grammar of calls that are forced, in the model's own format: a structural tag in xgrammar's
shape ({"type": "sequence", "elements": […]}), made of what a format says of how calls are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any

from penstock.parsing.format import CallFormat, KeyedValues, LooseObject, Written
from penstock.parsing.nodes import (
    ANY_TEXT,
    LENGTHS,
    Node,
    TextInput,
    arguments_of,
    bounded_text,
    either,
    schema_node,
    sequence,
    text_node,
    until,
)
from penstock.parsing.values import is_text, types_of
from penstock.parsing.written_values import NOTES, any_arguments, written_arguments

_NOTES = NOTES | {"type"}
"""Keywords that don't limit a string."""
_DEFINED = ("$defs", "definitions")
_LIMITS = frozenset({"type", "properties", "required", "additionalProperties", *_DEFINED})
"""Keywords of an object of keys and values that are kept to."""
MAX_VALUES = 1000
"""Most values of a tool that are held to their schemas."""

PLACE = "place"
"""In a node, what a complaint about a schema within calls its place."""
TOOLS = "/<tool>"
"""The place of a node that is calls of several tools: no place that a schema could have."""


def forced_tag(
    form: CallFormat,
    template: str,
    tools: Mapping[str, Any],
    most: int | None,
) -> Node | None:
    """The structural tag of an answer that is calls of these tools, at least one. None where the
    format can't be held to their schemas, or doesn't say how its calls are written.

    template: the chat template's text.  tools: by name: JSON schemas of the arguments, TextInput,
    or None where they are any.  most: calls at most.
    """
    written = written_by(form, template)
    if written is None:
        return None
    arguments = {}
    for name, schema in tools.items():
        node = arguments_node(form, written, schema)
        if node is None:
            return None
        arguments[name] = node
    tags = call_tags(written, arguments)
    # Where a line break could only begin another call, a model that has said all calls on and on.
    end = {"type": "regex", "pattern": r"\s{0,2}"}
    opened = either(text_node(written.opened), text_node("")) if written.opened else text_node("")
    return sequence(opened, text_node(written.before), list_of(written, tags, most), end)


def written_by(form: CallFormat, template: str) -> Written | None:
    """How a template writes calls; None where the format doesn't say."""
    return next((each for each in form.written if each.when in template), None)


def call_tags(written: Written, arguments: Mapping[str, Node]) -> list[Node]:
    """A tag for each tool's call. arguments: what they are like, by the tool's name."""
    return [
        {**_call(written, name, node), PLACE: place_of(index)}
        for index, (name, node) in enumerate(arguments.items())
    ]


def place_of(index: int) -> str:
    """Place of a tool, by its number in the request."""
    return f"{TOOLS}/{index}"


def list_of(written: Written, tags: list[Node], most: int | None = None) -> Node:
    """One call or more, with what stands between them and after the last one. What both begin
    with belongs to each call: else a grammar's lexer, which knows the next letter only, would have
    to tell one from the other by more."""
    letters = zip(written.between, written.after, strict=False)
    shared = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], letters))
    calls = {
        "type": "tags_with_separator",
        "tags": [{**tag, "end": tag["end"] + shared} for tag in tags],
        "separator": written.between.removeprefix(shared),
        "at_least_one": True,
        "stop_after_first": most == 1,
    }
    after = written.after.removeprefix(shared)
    return sequence(calls, text_node(after)) if after else calls


def arguments_node(form: CallFormat, written: Written, schema: Any) -> Node | None:
    """The arguments of a call. schema: or TextInput; None where they are any."""
    by_json = written.values is None and form.arguments == "json"
    if isinstance(schema, TextInput) and not by_json:
        return None
    if written.values is not None:
        if schema is None:
            return any_arguments(written, written.values)
        return written_arguments(written, written.values, schema)
    match form.arguments:
        case LooseObject():
            return None
        case KeyedValues() as marks if schema is None:
            return _any_keyed(written, marks)
        case KeyedValues() as marks:
            return _Keys(written, marks, schema).object(schema)
    return arguments_of(schema)


def _call(written: Written, name: str, arguments: Node) -> Node:
    begin, content = f"{written.begin}{name}{written.head_end}", arguments
    if written.index:
        begin, _, rest = begin.partition(written.index)
        number = {"type": "regex", "pattern": "[0-9]{1,3}"}
        content = sequence(number, text_node(rest), arguments)
    return {"type": "tag", "begin": begin, "content": content, "end": written.end}


def _any_keyed(written: Written, marks: KeyedValues) -> Node:
    """Any keys with any values."""
    value, rest = until(marks.value.end), written.value_end.partition(marks.value.end)[2]
    pairs = [
        sequence(_any_key(written, end), value, text_node(rest))
        for end in dict.fromkeys((written.key_end, written.json_key_end))
        if end
    ]
    tags = [{"type": "tag", "begin": "", "content": pair, "end": ""} for pair in pairs]
    return {"type": "tags_with_separator", "tags": tags, "separator": ""}


def _any_key(written: Written, end: str) -> Node:
    before, typed, after = end.partition("TYPE")
    key = until(before, begin=written.key)
    if not typed:
        return key
    kinds = dict.fromkeys(kind for _, kind in written.types)
    return sequence(key, {"type": "regex", "pattern": "|".join(kinds)}, text_node(after))


class _Keys:
    """Writes the grammar of arguments that are keys and values.

    root: what the schemas' references are in.
    """

    def __init__(self, written: Written, marks: KeyedValues, root: Any) -> None:
        self._written, self._marks, self._root = written, marks, root
        self._types = dict(written.types)
        self._left = MAX_VALUES

    def object(self, schema: Any) -> Node | None:
        """Each property with its marks, in the schema's order."""
        if not isinstance(schema, dict) or not schema.keys() - _NOTES <= _LIMITS:
            return None
        properties, required = schema.get("properties") or {}, schema.get("required") or []
        if not isinstance(properties, dict) or not isinstance(required, list):
            return None
        if not all(isinstance(key, str) and key in properties for key in required):
            return None
        if schema.get("additionalProperties") not in (None, False):
            return None
        nodes = []
        for key, value in properties.items():
            node = self._property(key, value)
            if node is None:
                return None
            nodes.append(node if key in required else either(node, text_node("")))
        return sequence(*nodes)

    def _property(self, key: str, schema: Any) -> Node | None:
        """A key and its value. Where the value's type is written too, one for each type."""
        types = types_of(schema, self._root)
        self._left -= 1
        if schema is False or self._left < 0:
            return None
        if not self._types:
            return self._value(key, self._written.key_end, schema)
        if types is None or not types <= self._types.keys():
            return None
        if len({self._types[each] for each in types}) == 1:
            key_end = self._written.key_end.replace("TYPE", self._types[min(types)])
            return self._value(key, key_end, schema)
        return _any_of(self._property(key, each) for each in _alternatives(schema))

    def _value(self, key: str, key_end: str, schema: Any) -> Node | None:
        """A value that may be no string is JSON."""
        if not is_text(types_of(schema, self._root)):
            key_end = self._written.json_key_end or key_end
            shared = {name: self._root[name] for name in _DEFINED if name in self._root}
            content = schema_node({**schema, **shared} if isinstance(schema, dict) else schema)
            return self._tag(key, key_end, content)
        mark = self._marks.value.end
        limits = schema.keys() - _NOTES
        if not limits:
            tag = self._tag(key, key_end, ANY_TEXT)
            rest = tag["end"].partition(mark)[2]
            tag["end"] = mark
            return sequence(tag, text_node(rest)) if rest else tag
        values = schema.get("enum", [schema.get("const")])
        if limits <= {"enum", "const"} and all(type(v) is str and mark not in v for v in values):
            return self._tag(key, key_end, either(*map(text_node, values)))
        text = bounded_text(schema, mark) if limits <= LENGTHS else None
        if text is None:
            return None  # The reader takes it as it is, so it can't be held to JSON's rules.
        tag = self._tag(key, key_end, text)
        padding, _, rest = tag["end"].partition(mark)
        return sequence({**tag, "end": padding + mark}, text_node(rest))

    def _tag(self, key: str, key_end: str, content: Node) -> Node:
        end = self._written.value_end
        for text, letter in reversed(self._marks.escapes):
            key = key.replace(letter, text)
        begin = f"{self._written.key}{key}{key_end}"
        return {"type": "tag", "begin": begin, "content": content, "end": end}


def _alternatives(schema: Node) -> list[Any]:
    """Schemas of fewer types each, any of which a value of this one meets; none: unknown."""
    named = schema.get("type")
    if isinstance(named, list) and len(named) > 1:
        return [{**schema, "type": each} for each in named]
    return schema.get("anyOf") or [] if schema.keys() - _NOTES == {"anyOf"} else []


def _any_of(nodes: Iterable[Node | None]) -> Node | None:
    """Returns a node for any of these; None if there are none, or one of them is None."""
    known = []
    for node in nodes:
        if node is None:
            return None
        known.append(node)
    return either(*known) if known else None
