"""The grammar of an answer whose calls are held to their tools' schemas, while all else is free: a
node for structural tags, `text_with_tags`, which is ours alone.

    shared          formats that others, or later ones of these, name by their index:
                    {"type": "shared", "index": 0}
    triggers, tags  as in xgrammar's triggered_tags, but the text between may hold any special token
                    that isn't a trigger
    spelled         marks that count where they are spelled out, too, though they are tokens
    starts          what only the text's beginning can be: a regular expression, `pattern`, and
                    what comes then
    again           what follows a start may begin like one too, and is held to the same
    last            nothing comes after a tag or a start
    thoughts        free text before all that, from `begin`, or at once where it is empty, to `end`
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from penstock.parsing.forced_grammar import (
    PLACE,
    arguments_node,
    call_tags,
    list_of,
    place_of,
    written_by,
)
from penstock.parsing.format import CallFormat, ThoughtFormat, Written
from penstock.parsing.nodes import Node, either, sequence, text_node
from penstock.parsing.thinking import begins_inside, is_over

_SPACE = r"\s{0,8}"
_FENCE = r"(```(json)?[ \t]{0,8}\n\s{0,8})?"
_LISTED = r"([\[,]\s{0,8})?"


def held_text(
    form: CallFormat,
    template: str,
    tools: Mapping[str, Any],
    thoughts: ThoughtFormat | None = None,
    prompt: str = "",
) -> Node | None:
    """Free text with calls of these tools. None where the format doesn't say how its calls are
    written. A tool that `unheld` names may have any arguments.

    template: the chat template's text.  tools: by name: JSON schemas of the arguments, TextInput,
    or None where they are any.  thoughts: how the model marks them; there, a call's mark is text.
    prompt: the filled template, or its end.
    """
    written = written_by(form, template)
    if written is None:
        return None
    allowed = {**tools, **dict.fromkeys(unheld(form, written, tools))}
    shared: list[Node] = []
    arguments: dict[str, Node] = {}
    any_index: int | None = None
    for at, (name, schema) in enumerate(allowed.items()):
        index = len(shared)
        if schema is None and any_index is not None:
            index = any_index  # Any arguments are described once.
        else:
            node = arguments_node(form, written, schema)
            if node is None:
                return None
            shared.append({**node, PLACE: place_of(at)})
        if schema is None:
            any_index = index
        arguments[name] = {"type": "shared", "index": index}
    tags = call_tags(written, arguments)
    marks = [pair.begin for pair in (form.block, form.call) if pair is not None]
    if written.told_by:
        marks = [written.told_by]
    text: Node = {
        "type": "text_with_tags",
        "shared": shared,
        "triggers": marks,
        "spelled": [mark for mark in marks if mark not in form.tokens],
        "tags": [tag for mark in marks for tag in _after_mark(form, written, mark, tags)],
        "starts": _bare(form, written, arguments, {"type": "shared", "index": len(shared)}),
        "again": form.bare and "object" in form.bodies,
        "last": bool(form.separators),
    }
    if form.bare:
        shared.append(_behind_bare(form, written, tags))
    # What ends thoughts and begins a call does so anywhere.
    if thoughts is None or thoughts.ended_by or is_over(thoughts, prompt):
        return text
    begin, end = thoughts.block
    text["thoughts"] = {"begin": "" if begins_inside(thoughts, prompt) else begin, "end": end}
    text["spelled"] += [mark for mark in (begin, end) if mark not in thoughts.tokens]
    return text


def unheld(form: CallFormat, written: Written, tools: Mapping[str, Any]) -> list[str]:
    """Names of tools whose schemas the format can't be held to."""
    return [name for name, schema in tools.items() if arguments_node(form, written, schema) is None]


def _after_mark(form: CallFormat, written: Written, mark: str, tags: list[Node]) -> list[Node]:
    """What begins with one of the format's marks."""
    calls = list_of(written, tags)
    at = written.before.find(mark)
    if at >= 0:
        begin = written.before[at:]
        return [{"type": "tag", "begin": begin, "content": calls, "end": ""}]
    at = written.begin.find(mark)
    if at < 0:
        end = {"type": "regex", "pattern": _SPACE}
        whole = sequence(text_node(written.before), calls, end)
        return [{"type": "tag", "begin": mark, "content": whole, "end": ""}]
    mark_end = written.end
    if at and form.call is not None and form.call.end:
        before, end_mark, _ = mark_end.partition(form.call.end)
        mark_end = before + end_mark
    return [{**tag, "begin": tag["begin"][at:], "end": mark_end} for tag in tags]


def _bare(
    form: CallFormat, written: Written, arguments: Mapping[str, Node], following: Node
) -> list[Node]:
    """Returns the nodes of calls without marks, which an answer may begin with, if the format has
    them: as templates write them, or objects whose first member is the name. following: what comes
    after one."""
    if not form.bare:
        return []
    if "object" not in form.bodies:
        head = _SPACE + re.escape(written.before + written.begin)
        return [
            {
                "pattern": f"{head}{re.escape(name + written.head_end)}",
                "content": sequence(node, following),
            }
            for name, node in arguments.items()
        ]
    if form.keys is None:
        return []
    (name_key, *_), arguments_keys = form.keys
    opened = rf"{_FENCE if form.fenced else ''}{_LISTED if 'list' in form.bodies else ''}"
    head = rf'{_SPACE}{opened}\{{{_SPACE}"{name_key}"{_SPACE}:{_SPACE}'
    comma = rf'{_SPACE},{_SPACE}"({"|".join(map(re.escape, arguments_keys))})"{_SPACE}:{_SPACE}'
    return [
        {
            "pattern": f'{head}"{re.escape(name)}"',
            "content": sequence({"type": "regex", "pattern": comma}, node, following),
        }
        for name, node in arguments.items()
    ]


def _behind_bare(form: CallFormat, written: Written, tags: list[Node]) -> Node:
    """After the arguments of a call without marks: its end, and further calls in a list, or, where
    separators are the format's, after one."""
    more = sequence(text_node(written.between), list_of(written, tags))
    if "object" not in form.bodies:
        return sequence(text_node(written.end), either(text_node(written.after), more))
    end: Node = {"type": "regex", "pattern": rf"{_SPACE}\}}"}
    if not form.separators:
        return end
    return sequence(end, either(text_node(""), more), {"type": "regex", "pattern": _SPACE})
