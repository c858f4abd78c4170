"""Calls of a conversation as their model writes them: for chat templates that don't show calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from penstock.parsing.forced_grammar import written_by
from penstock.parsing.format import AnyFormat, CallFormat, KeyedValues, ValueMarks, Written
from penstock.parsing.registry import tool_parser

Call = dict[str, Any]
"""A call as chat templates have it: its function's name, and its arguments, an object."""
_AS_JSON = Written(begin='{"name": "', head_end='", "arguments": ', end="}", between="\n")


Mark = Callable[[str], str]
"""What stands for one of a format's marks that are tokens."""


def writer_of(
    parser: str, template: str, family: str = ""
) -> Callable[[Sequence[Call], Mark], str]:
    """What writes calls as a model does, whose calls this parser reads. Arguments are those of
    `tool_parser`, and what it raises."""
    return partial(written_calls, tool_parser(parser, template, family).form, template)


def written_calls(
    form: AnyFormat | None,
    template: str,
    calls: Sequence[Call],
    mark: Mark = str,
) -> str:
    """The calls' text. form: how the model writes calls; None: as JSON.  template: the chat
    template's text."""
    written, values = _AS_JSON, None
    if isinstance(form, CallFormat) and (found := written_by(form, template)) is not None:
        written = found
        values = form.arguments if isinstance(form.arguments, KeyedValues) else None
    tokens = form.tokens if isinstance(form, CallFormat) else ()

    def text_of(text: str) -> str:
        for token in tokens:
            text = text.replace(token, mark(token))
        return text

    texts = []
    for number, call in enumerate(calls):
        function = call["function"]
        head = f"{function['name']}".join((text_of(written.begin), text_of(written.head_end)))
        if written.index:
            head = head.replace(written.index, str(number), 1)
        arguments = _arguments(written, values, function.get("arguments") or {}, text_of)
        texts.append(f"{head}{arguments}{text_of(written.end)}")
    return text_of(written.before) + text_of(written.between).join(texts) + text_of(written.after)


def _arguments(
    written: Written, values: KeyedValues | None, arguments: Any, text_of: Callable[[str], str]
) -> str:
    if isinstance(arguments, str):  # As OpenAI's API has them.
        return arguments
    if values is not None:
        return "".join(_keyed(written, name, value, text_of) for name, value in arguments.items())
    if written.values is None:
        return getattr(arguments, "text", None) or _json(arguments)
    return _members(written.values, arguments, (written.key, written.key_end), text_of)


def _keyed(written: Written, name: str, value: Any, text_of: Callable[[str], str]) -> str:
    is_text = isinstance(value, str)
    end = written.key_end if is_text else written.json_key_end or written.key_end
    end = end.replace("TYPE", dict(written.types).get(_kind(value), ""))
    text = value if is_text else _json(value)
    return f"{text_of(written.key)}{name}{text_of(end)}{text}{text_of(written.value_end)}"


def _members(
    marks: ValueMarks, members: dict[str, Any], key: tuple[str, str], text_of: Callable[[str], str]
) -> str:
    names = sorted(members, key=str.lower) if marks.sorted_keys else members
    before, behind = map(text_of, key)
    return marks.comma.join(
        f"{before}{name}{behind}{_value(marks, members[name], text_of)}" for name in names
    )


def _value(marks: ValueMarks, value: Any, text_of: Callable[[str], str]) -> str:
    if value is True or value is False or value is None:
        return dict(zip((True, False, None), marks.words, strict=True))[value]
    if isinstance(value, dict):
        return f"{{{_members(marks, value, marks.key, text_of)}}}"
    if isinstance(value, list):
        return f"[{marks.comma.join(_value(marks, each, text_of) for each in value)}]"
    if isinstance(value, str) and marks.quote:
        return f"{text_of(marks.quote)}{value}{text_of(marks.quote)}"
    return _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = {str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "null")
