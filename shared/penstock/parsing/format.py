"""The description of a format: how a family of models writes calls and marks its thoughts.

A description is data. `calls.FormatCalls`, `thinking.ThinkBlocks` and `channels.Channels` read
texts by it; `penstock.parsing.formats` has one module for each family.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar

NAME = r"[\w.\-/]{1,256}"
"""A function's name, as models write it: more than what requests may offer."""

Described = TypeVar("Described")


class MarkPair(NamedTuple):
    """What begins something and what ends it. Whitespace around them is the format's own.

    end: empty where nothing does.
    """

    begin: str
    end: str = ""


@dataclass(frozen=True, kw_only=True)
class Recognised:
    """How it is seen that a chat template teaches a format. `all_of` must be in its text, one of
    `any_of`, if there are any, and nothing of `none_of`.

    families: names of the layers' families (penstock.families). They decide between formats that
        a template may teach, and where the template says nothing.
    """

    all_of: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    none_of: tuple[str, ...] = ()
    families: tuple[str, ...] = ()

    def by_template(self, template: str) -> bool:
        return (
            bool(self.all_of or self.any_of)
            and all(text in template for text in self.all_of)
            and (not self.any_of or any(text in template for text in self.any_of))
            and not any(text in template for text in self.none_of)
        )


@dataclass(frozen=True, kw_only=True)
class CallHead:
    """A name that stands before its arguments.

    pattern: a regular expression that all of the head matches, whitespace around it left out. Its
    group `name` is the function's; a group `id` is the call's own id.
    ends: the first of these ends the head.  before: so does the first of these, and it is what
    comes next.
    content: a name that is no function's: what follows such a head is content.
    """

    pattern: str = rf"(?P<name>{NAME})"
    ends: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    content: str = ""


ValueKind = Literal["schema", "text", "json"]
"""schema: what the tool's schema says of the parameter decides whether the value is JSON or text.
"""


@dataclass(frozen=True, kw_only=True)
class KeyedValues:
    """Arguments as keys and values, each with marks of its own.

    key: what begins a key.  key_ends: what ends it, and how the value is then written.
    value: around the value; an empty beginning where the key's end is one. KEY in its end stands
        for the key.
    padding: is left out once at the value's beginning, and once at its end.
    quoted: around a value in which the other marks mean nothing.
    nested: a value may be keys and values itself, or a list of values, whose keys are `item`.
    whole: around a JSON object that stands instead of all keys.
    escapes: what stands in keys, and for which letter.
    """

    key: str
    key_ends: tuple[tuple[str, ValueKind], ...]
    value: MarkPair
    padding: str = ""
    quoted: MarkPair | None = None
    nested: bool = False
    whole: MarkPair | None = None
    escapes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class LooseObject:
    """Arguments as an object whose keys have no quotes.  quote: before and after each string."""

    quote: str


@dataclass(frozen=True, kw_only=True)
class ValueMarks:
    """How a template writes values that aren't JSON.

    quote: before and after each string; empty: strings are JSON.  words: for true, false and null.
    comma: between members and items.  key: around the key of a member of an object in another.
    sorted_keys: members are in the alphabet's order.
    """

    quote: str = ""
    words: tuple[str, str, str] = ("true", "false", "null")
    comma: str
    key: tuple[str, str]
    sorted_keys: bool = False


PYTHON = ValueMarks(words=("True", "False", "None"), comma=", ", key=('"', '": '))


@dataclass(frozen=True, kw_only=True)
class Written:
    """Calls to the letter, as templates write them: what forced calls are held to. All of it is

        before (begin NAME head_end ARGUMENTS end) between (…) after

    before, after: around all calls.  opened: may stand before it all, where the prompt hasn't
    written it.  index: in `begin` or `head_end`, stands for a number.
    key, key_end, value_end: around the keys and values of arguments that are KeyedValues. TYPE in
    `key_end` stands for what `types` has for the JSON type of the value.
    values: of arguments whose values aren't JSON, nor KeyedValues.
    json_key_end: instead of `key_end` before a value that may be no string; empty: the same.
    told_by: what begins a call where the format's mark alone is an ordinary word.
    when: a template that writes so has this in its text.
    """

    begin: str
    head_end: str
    end: str
    opened: str = ""
    before: str = ""
    between: str = ""
    after: str = ""
    index: str = ""
    key: str = ""
    key_end: str = ""
    value_end: str = ""
    types: tuple[tuple[str, str], ...] = ()
    json_key_end: str = ""
    values: ValueMarks | None = None
    told_by: str = ""
    when: str = ""


@dataclass(frozen=True, kw_only=True)
class CallFormat:
    """How calls are written.

    names: by which `--tool-call-parser` takes it, vLLM's; the first is shown.
    models: the families that write so, for people.
    block: around any number of calls.  call: around each, or around a list of them.
    bodies: what may stand within `call`.  object: {"name": …, "arguments": …}.  list: several of
        these, or of `python`, in brackets.  named: a head, then arguments.  python: f(a=1).
    list_of: what stands in a list.
    keys: names of an object's members for the function's name, then for its arguments.  None: its
        one member is both: {"f": {…}}.
    head, arguments: of bodies that are `named`. arguments: "json", an object; or KeyedValues, or a
        LooseObject.
    bare: the answer may begin with a body that has no marks, if it calls a function that the
        request offers, with arguments.  fenced: this body may stand in a code fence.
    anywhere: so may later lines, if they aren't in a code block.
    only_known: with marks too, a call must be of a function that the request offers.
    needs_arguments: an object without them is no call.
    separators: letters that stand between calls.
    space_stays: whitespace after a call is content, if more content follows.
    written: the ways in which templates write calls; the first that fits the template's text holds
        forced calls. None: they are written as JSON.
    tokens: marks that are matched by token id, where the tokenizer has one token for them.
    short_ids: ids of nine letters and digits: Mistral's templates refuse others.
    """

    names: tuple[str, ...]
    models: str
    recognised: Recognised = Recognised()
    block: MarkPair | None = None
    call: MarkPair | None = None
    bodies: tuple[Literal["object", "list", "named", "python"], ...]
    list_of: Literal["object", "python"] = "object"
    keys: tuple[tuple[str, ...], tuple[str, ...]] | None = (("name",), ("arguments", "parameters"))
    head: CallHead | None = None
    arguments: Literal["json"] | KeyedValues | LooseObject = "json"
    bare: bool = False
    fenced: bool = False
    anywhere: bool = False
    only_known: bool = False
    needs_arguments: bool = False
    separators: str = ""
    space_stays: bool = False
    written: tuple[Written, ...] = ()
    tokens: tuple[str, ...] = ()
    short_ids: bool = False

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True, kw_only=True)
class ThoughtFormat:
    """How thoughts are marked: one block at the beginning of the answer.

    names: by which `--reasoning-parser` takes it.  block: around the thoughts.
    open_at_first: the answer begins inside of the block where the prompt says nothing about it.
    ended_by: marks that end the thoughts too, and are what comes next.
    dropped: marks around the content after them, which belong to neither.
    answer: those around an answer's words. Where a grammar says what these are, they may be left
        out.
    """

    names: tuple[str, ...]
    models: str
    recognised: Recognised = Recognised()
    block: MarkPair
    open_at_first: bool = False
    ended_by: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    answer: MarkPair | None = None
    tokens: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True, kw_only=True)
class ChannelFormat:
    """Messages in channels: a head, which names the channel and perhaps a recipient, then text.

    names, reasoning_names: by which `--tool-call-parser` and `--reasoning-parser` take it. Without
        names, it is a format of thoughts only: calls are in another one, in what is content.
    begin: begins another message's head.  channel: begins a channel's name, in heads only if it is
        no token.  text: ends the head.
    ends: end a message.  thoughts: names of the channels that hold them.
    recipient: a regular expression; if the head has it, the message is a call of the function
        `name`.
    answer, calls: the channels of answers and of calls.  address: what stands before a function's
        name in a head that a grammar forces.  content_type: what begins the kind of its arguments.
    """

    names: tuple[str, ...]
    reasoning_names: tuple[str, ...]
    models: str
    recognised: Recognised = Recognised()
    begin: str
    channel: str
    text: str
    ends: tuple[str, ...]
    thoughts: tuple[str, ...]
    recipient: str = r"(?P<name>(?!))"
    answer: str
    calls: str = ""
    address: str = ""
    content_type: str = ""
    tokens: tuple[str, ...] = ()
    short_ids: bool = False

    @property
    def name(self) -> str:
        return (*self.names, *self.reasoning_names)[0]


AnyFormat = CallFormat | ThoughtFormat | ChannelFormat


def with_letters(described: Described, letters: dict[str, str]) -> Described:
    """The description with other texts for some marks."""
    return described if not letters else _replaced(described, letters)


def _replaced(value: Any, letters: dict[str, str]) -> Any:
    if isinstance(value, str):
        for mark, letter in letters.items():
            # Within a regular expression, it is written otherwise.
            value = value.replace(mark, letter).replace(re.escape(mark), letter)
        return value
    if isinstance(value, MarkPair):
        return MarkPair(*(_replaced(each, letters) for each in value))
    if isinstance(value, tuple):
        return tuple(_replaced(each, letters) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        kept = ("names", "models", "recognised", "tokens", "written")
        return replace(
            value,
            **{
                field.name: _replaced(getattr(value, field.name), letters)
                for field in fields(value)
                if field.name not in kept
            },
        )
    return value
