"""What an answer must look like: thoughts, if the model thinks, then what a grammar asks for.

A model that thinks does so freely; the grammar begins where its thoughts have ended. Where a
request has both a schema and tools that the model may call, the answer is either.  All of that is
written as a structural tag, in which a mark that is one token of the tokenizer's stands for the
token. Calls that the model chooses to make are held to the schemas of tools that are strict.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

from penstock.parsing.forced_grammar import PLACE, TOOLS, forced_tag, place_of, written_by
from penstock.parsing.format import AnyFormat, CallFormat, ChannelFormat, ThoughtFormat
from penstock.parsing.held_calls import held_text, unheld
from penstock.parsing.nodes import (
    ANY_TEXT,
    Node,
    arguments_of,
    either,
    schema_node,
    sequence,
    text_node,
    until,
)
from penstock.parsing.registry import ToolFormat
from penstock.parsing.thinking import begins_inside, is_over
from penstock.process import logs
from penstock.request.structured_outputs import StructuredOutputs
from penstock_gateway.chat.tools import Tool, ToolUse, call_schema, held_arguments

_SPACE: Node = {"type": "regex", "pattern": r"\s{0,8}"}
"""Whitespace between thoughts and answer."""


def answer_grammar(
    outputs: StructuredOutputs | None,
    use: ToolUse,
    calls: AnyFormat | None,
    thoughts: AnyFormat | None,
    prompt: str,
    own: Node | None = None,
) -> StructuredOutputs | None:
    """None where all text is allowed.

    outputs: what the client asks for; a call that is forced comes instead of it.
    calls, thoughts: the formats in which the model writes them. None: it writes none, or a
    plug-in's parser reads them, of which no more is known.
    prompt: the filled template, or its end: it may have begun the thoughts, or ended them.
    own: what calls look like in the model's own format, held to their schemas. None: they are JSON
    where they are forced, and else as free as the model writes them.

    A structural tag of the client's stays what it is: it says itself where text is free.
    """
    calls_asked = use.grammar()
    wanted = calls_asked or outputs
    forced = use.mode in ("named", "required")
    answer = own if forced else None
    if answer is None and wanted is not None:
        tag = None if calls_asked is None else calls_asked.structural_tag
        answer = tag["format"] if isinstance(tag, dict) else _node(wanted)
    if answer is None:
        return wanted
    for form in (calls, thoughts):
        if isinstance(form, ChannelFormat):
            tools = use.callable_schemas if form is calls else {}
            others = []
            if isinstance(calls, CallFormat) and use.mode == "free":
                others = [_addressed(calls, form, tool) for tool in use.tools]
            said = None if forced and tools else answer
            return _tag(_in_channels(said, form, prompt, tools, others=others))
    whole = own is not None
    if use.mode == "free" and isinstance(calls, CallFormat):
        held = None if own is None else sequence(_SPACE, own)
        answer, whole = either(held or _call(calls, use.tools), answer), True
    if isinstance(thoughts, ThoughtFormat) and not is_over(thoughts, prompt):
        return _tag(_in_block(answer, thoughts, inside=begins_inside(thoughts, prompt)))
    return _tag(answer) if whole else wanted


def _tag(node: Node) -> StructuredOutputs:
    return StructuredOutputs(structural_tag={"format": node})


def _in_block(answer: Node, form: ThoughtFormat, *, inside: bool) -> Node:
    """Thoughts in a block, then the answer."""
    begin, end = form.block
    # A model may repeat the mark that the prompt ends in.
    begun = either(text_node(""), text_node(begin)) if inside else text_node(begin)
    said = answer
    if form.answer is not None:
        before, after = (either(text_node(""), text_node(mark)) for mark in form.answer)
        said = sequence(before, answer, after)
    block = sequence(begun, until(end))
    # The answer stands once: schemas may be long.
    return sequence(block if inside else either(block, text_node("")), _SPACE, said)


def free_answer(
    calls: CallFormat | ChannelFormat,
    thoughts: AnyFormat | None,
    template: str,
    prompt: str,
    schemas: Mapping[str, Any],
) -> StructuredOutputs | None:
    """Any text, in which calls are held to their schemas. None where the format's calls can't be.

    template: the chat template's text.  schemas: by the tool's name; None where its arguments are
    any.  calls, thoughts, prompt: as in `answer_grammar`.
    """
    if isinstance(calls, ChannelFormat):
        return _tag(_in_channels(ANY_TEXT, calls, prompt, schemas, free=True))
    block = thoughts if isinstance(thoughts, ThoughtFormat) else None
    node = held_text(calls, template, schemas, block, prompt)
    return None if node is None else _tag(node)


def _in_channels(
    answer: Node | None,
    form: ChannelFormat,
    prompt: str,
    schemas: Mapping[str, Any],
    *,
    free: bool = False,
    others: Sequence[Node] = (),
) -> Node:
    """Any number of messages in other channels, then one in the answer's, or a call. None: it must
    be a call.  free: the last message may be in any channel.  others: what else it may be."""
    role, channel, begun = prompt.rpartition(form.begin)[2].partition(form.channel)
    next_head = f"{form.ends[0]}{form.begin}{role}"
    heads = {
        name: f"{form.channel}{name}{form.text}"
        for name in filter(None, (*form.thoughts, form.calls, form.answer))
    }
    last = [
        {**_channel_call(form, name, schema), PLACE: place_of(index)}
        for index, (name, schema) in enumerate(schemas.items())
    ]
    if answer is not None:
        ends = heads if free else (form.answer,)
        last += [sequence(text_node(heads[name]), answer) for name in ends]
    if not free:
        del heads[form.answer]
    before = {
        "type": "tags_with_separator",
        "separator": "",
        "tags": [until(next_head, begin=head) for head in heads.values()],
    }
    whole = sequence(before, either(*last, *others))
    name, text, _ = begun.partition(form.text)
    if not channel or not text:
        return whole
    # The prompt has begun a message.
    if name == form.answer and answer is not None and not free:
        return answer
    following = sequence(until(next_head), whole)
    return either(ANY_TEXT, following) if free else following


def _channel_call(form: ChannelFormat, name: str, schema: Any) -> Node:
    begin = f"{form.channel}{form.calls} {form.address}{name}"
    kind = {"type": "regex", "pattern": "( ?json)?"}
    arguments = arguments_of(schema)
    marked = sequence(
        text_node(f"{begin} {form.content_type}"), kind, text_node(form.text), arguments
    )
    return either(marked, sequence(text_node(begin + form.text), arguments))


def _addressed(calls: CallFormat, form: ChannelFormat, tool: Tool) -> Node:
    """A message to a tool, in which the call has marks of its own."""
    head = text_node(f"{form.channel}{tool.function.name}{form.text}")
    return sequence(head, _call(calls, (tool,)))


def _call(form: CallFormat, tools: tuple[Tool, ...]) -> Node:
    """What begins as a call in this format does, or, where such a call has no mark, is one."""
    pairs = [pair for pair in (form.block, form.call) if pair is not None]
    marks = dict.fromkeys(mark for mark in (*form.tokens, *sum(pairs, ())) if mark)
    marked = [sequence(_SPACE, text_node(pair.begin), _free(*marks)) for pair in pairs[:1]]
    bare = _without_marks(form, tools) if form.bare else []
    return either(*marked, *bare)


def _without_marks(form: CallFormat, tools: tuple[Tool, ...]) -> list[Node]:
    """Calls that begin an answer as they are."""
    if form.head is not None and "named" in form.bodies:
        end = form.head.ends[0]
        return [
            sequence(
                text_node(f"{tool.function.name}{end}"),
                {**arguments_of(held_arguments(tool)), PLACE: place_of(index)},
            )
            for index, tool in enumerate(tools)
        ]
    if form.keys is None:
        return []
    (name, *_), arguments = form.keys
    # All tools with the first key, then all with the next: a complaint's place tells the tool.
    items = [
        call_schema(tool, f"#/anyOf/{at}/properties/{key}", (name, key))
        for at, (key, tool) in enumerate(product(arguments, tools))
    ]
    return [{**schema_node({"anyOf": items}), PLACE: TOOLS}]


def _free(*marks: str) -> Node:
    """Any text, in which these marks may stand, although they may be tokens of their own."""
    tags = [until(mark) for mark in marks]
    return sequence({"type": "tags_with_separator", "separator": "", "tags": tags}, ANY_TEXT)


def _node(outputs: StructuredOutputs) -> Node | None:
    """What a client asks for, as a part of a structural tag; None for what is a tag itself."""
    if outputs.json is not None:
        given = outputs.json
        schema = json.loads(given) if isinstance(given, str) else given
        return schema_node(schema)
    if outputs.json_object is not None:
        return schema_node({"type": "object"})
    if outputs.regex is not None:
        return {"type": "regex", "pattern": outputs.regex}
    if outputs.choice is not None:
        return either(*map(text_node, outputs.choice))
    if outputs.grammar is not None:
        return {"type": "grammar", "grammar": outputs.grammar}
    return None


log = logs.get(__name__)

UNKNOWN = "their format isn't known"
INEXPRESSIBLE = "this format can't express the tool's schema"
TOO_LARGE = "all tools' schemas in one grammar are longer than max_grammar_bytes"

TOLD = 256
"""Most formats and tools that are remembered as logged."""


def strict_grammar(
    outputs: StructuredOutputs | None,
    use: ToolUse,
    calls: ToolFormat,
    thoughts: AnyFormat | None,
    template: str,
    prompt: str,
    schemas: Mapping[str, Any],
    largest: int,
) -> StructuredOutputs | None:
    """What the answer must look like; None where all text is allowed. What can't be held to a
    schema is as free as without `strict`, and the log says so.

    schemas: by the tool's name, as ToolUse.held has them.  largest: bytes that the engine takes of
    a grammar: where all schemas are too much, calls are held to the tools' names.  The others: as
    in answer_grammar.
    """
    form = calls.form if calls.known else None
    written = None if not isinstance(form, CallFormat) else written_by(form, template)
    if form is None or (isinstance(form, CallFormat) and written is None):
        _say_unheld(calls.name, UNKNOWN)
        return answer_grammar(outputs, use, calls.form, thoughts, prompt)
    if written is not None and isinstance(form, CallFormat):
        free = unheld(form, written, schemas)
        for name in free:
            _say_unheld(calls.name, INEXPRESSIBLE, name)
        schemas = {**schemas, **dict.fromkeys(free)}
    for held in (schemas, dict.fromkeys(schemas)):
        grammar = _held(outputs, use, form, thoughts, template, prompt, held)
        if grammar is None or bytes_of(grammar) <= largest:
            return grammar
        _say_unheld(calls.name, TOO_LARGE)
    return answer_grammar(outputs, use, calls.form, thoughts, prompt)


def _held(
    outputs: StructuredOutputs | None,
    use: ToolUse,
    form: CallFormat | ChannelFormat,
    thoughts: AnyFormat | None,
    template: str,
    prompt: str,
    schemas: Mapping[str, Any],
) -> StructuredOutputs | None:
    if outputs is None:
        return free_answer(form, thoughts, template, prompt, schemas)
    if isinstance(form, ChannelFormat):
        return answer_grammar(outputs, use, form, thoughts, prompt)
    own = forced_tag(form, template, schemas, use.most)
    return answer_grammar(outputs, use, form, thoughts, prompt, own)


def bytes_of(grammar: StructuredOutputs) -> int:
    """Returns the length of the text that the engine gets."""
    return len(grammar.definition().text.encode())


@lru_cache(maxsize=TOLD)
def _say_unheld(parser: str, why: str, tool: str = "") -> None:
    """Once for a reason of a format, or of a tool in it."""
    log.warning(
        f"strict has no effect on calls that the model chooses to make: {why}",
        parser=parser,
        **({"tool": tool} if tool else {}),
    )
