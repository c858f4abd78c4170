"""Parsers by name: the formats that are described here, and plug-ins, which come by entry point."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

from penstock.config.plugins import REASONING_PARSERS, TOOL_PARSERS, named_plugin
from penstock.errors import StartupError
from penstock.parsing.calls import FormatCalls, short_id
from penstock.parsing.channels import Channels
from penstock.parsing.format import AnyFormat, CallFormat, ChannelFormat, ThoughtFormat
from penstock.parsing.formats import FORMATS
from penstock.parsing.formats.json_calls import JSON
from penstock.parsing.interface import OutputParser, ReasoningParser, ToolParser
from penstock.parsing.thinking import ThinkBlocks

Form = TypeVar("Form", bound=AnyFormat)
Letters = dict[str, str]
"""What stands in a text for marks that are tokens."""
_CALLS: dict[str, CallFormat | ChannelFormat] = {
    name: form for form in FORMATS if not isinstance(form, ThoughtFormat) for name in form.names
}
_THOUGHTS: dict[str, ThoughtFormat | ChannelFormat] = {
    name: form
    for form in FORMATS
    if not isinstance(form, CallFormat)
    for name in (form.reasoning_names if isinstance(form, ChannelFormat) else form.names)
}
_TAKES_TOOLS = re.compile(r"\btools\b")
"""A word of templates that show tools to the model."""


@dataclass(frozen=True)
class ToolFormat:
    """How calls are read. Called as a plug-in's class is, with the tools that a request offers.

    known: whether the format is the model's own, as far as can be seen.
    """

    name: str
    make: Callable[[Collection[str], Letters], OutputParser]
    new_id: Callable[[], str]
    form: CallFormat | ChannelFormat | None = None
    """The built-in format; None for a plug-in's."""
    needs_special_tokens: bool = False
    """Whether a plug-in's text must show special tokens."""
    known: bool = True

    def __call__(self, tools: Collection[str], letters: Letters | None = None) -> OutputParser:
        return self.make(tools, letters or {})


@dataclass(frozen=True)
class ReasoningFormat:
    """How thoughts are read. Called as a plug-in's class is, with the prompt."""

    name: str
    make: Callable[[str, Letters], OutputParser]
    closing_tag: str | None
    form: ThoughtFormat | ChannelFormat | None = None

    def __call__(self, prompt: str, letters: Letters | None = None) -> OutputParser:
        return self.make(prompt, letters or {})


@cache
def tool_parser(name: str, template: str, family: str = "") -> ToolFormat:
    """template: the chat template's text, by which, and by the family of the model's layers, `auto`
    decides. Raises StartupError for a name that is none, or a plug-in that can't be used."""
    if name == "auto":
        return _tools_of(template, family)
    form = _CALLS.get(name)
    if form is not None:
        return _tool_format(form)
    kind = _plugin(name, TOOL_PARSERS, ToolParser, "--tool-call-parser", _CALLS)
    return ToolFormat(
        name,
        lambda tools, letters: kind(tools),
        kind.new_id,
        needs_special_tokens=kind.needs_special_tokens,
    )


@cache
def reasoning_parser(name: str, template: str, family: str = "") -> ReasoningFormat | None:
    """The parser of thoughts by its name, chosen as by tool_parser; None where the answer is all
    content."""
    if name in ("none", ""):
        return None
    if name == "auto":
        found = recognised(_THOUGHTS.values(), template, family)
        return None if found is None else _reasoning_format(found)
    form = _THOUGHTS.get(name)
    if form is not None:
        return _reasoning_format(form)
    kind = _plugin(name, REASONING_PARSERS, ReasoningParser, "--reasoning-parser", _THOUGHTS)
    return ReasoningFormat(name, lambda prompt, letters: kind(prompt), kind.closing_tag)


def chosen(calls: str, thoughts: str, template: str, family: str) -> dict[str, str]:
    """The names of the parsers that read a model's answers, for people; calls, thoughts: the
    settings. Raises StartupError as `tool_parser` does."""
    tools = tool_parser(calls, template, family)
    reasoning = reasoning_parser(thoughts, template, family)
    return {
        "tool_call_parser": tools.name if tools.known else f"{tools.name} (format unknown)",
        "reasoning_parser": "none" if reasoning is None else reasoning.name,
    }


def recognised(formats: Collection[Form], template: str, family: str) -> Form | None:
    """The format that a template teaches; if that says nothing, the one that the family has.

    How a model writes calls can be read off how its template writes them back to it.
    """
    by_template = [form for form in formats if form.recognised.by_template(template)]
    by_type = [form for form in formats if family in form.recognised.families]
    for form in (*(each for each in by_template if each in by_type), *by_template, *by_type):
        return form
    return None


def _tools_of(template: str, family: str) -> ToolFormat:
    found = recognised(_CALLS.values(), template, family)
    if found is not None:
        return _tool_format(found)
    return _tool_format(JSON, known=not _TAKES_TOOLS.search(template))


def _tool_format(form: CallFormat | ChannelFormat, *, known: bool = True) -> ToolFormat:
    new_id = short_id if form.short_ids else ToolParser.new_id
    if isinstance(form, ChannelFormat):
        return ToolFormat(
            form.name, lambda tools, letters: Channels(form, "", letters), new_id, form
        )
    return ToolFormat(
        form.name,
        lambda tools, letters: FormatCalls(form, tools, letters),
        new_id,
        form,
        known=known,
    )


def at_the_beginning(calls: ToolFormat) -> ToolFormat:
    """Returns the format with calls without marks at an answer's beginning alone: what a grammar
    can hold."""
    form = calls.form
    if not isinstance(form, CallFormat) or not form.anywhere:
        return calls
    return replace(_tool_format(replace(form, anywhere=False), known=calls.known), form=form)


def _reasoning_format(form: ThoughtFormat | ChannelFormat) -> ReasoningFormat:
    if isinstance(form, ChannelFormat):
        return ReasoningFormat(
            form.name,
            lambda prompt, letters: Channels(form, prompt, letters, calls=False),
            form.ends[0],
            form,
        )
    return ReasoningFormat(
        form.name,
        lambda prompt, letters: ThinkBlocks(form, prompt, letters),
        form.block.end,
        form,
    )


def _plugin(
    name: str, group: str, kind: type[Any], flag: str, built_in: Collection[str]
) -> type[Any]:
    found = named_plugin(group, name, flag, ("auto", *built_in)).value
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise StartupError(f"{flag} {name}: the plug-in's {found!r} is not a {kind.__name__}")
    return found
