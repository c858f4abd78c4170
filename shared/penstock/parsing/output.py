"""The parser of a whole answer: reasoning first, then calls in what is content."""

from __future__ import annotations

from collections.abc import Collection

from penstock.parsing.call_text import CallText
from penstock.parsing.channels import Channels
from penstock.parsing.format import ChannelFormat
from penstock.parsing.interface import (
    CallArguments,
    CallBegin,
    Content,
    Event,
    OutputParser,
    merged,
)
from penstock.parsing.registry import ReasoningFormat, ToolFormat


class ChainedParser(OutputParser):
    """The content that `first` gives goes through `second`."""

    def __init__(self, first: OutputParser, second: OutputParser) -> None:
        self._first = first
        self._second = second

    def push(self, text: str) -> list[Event]:
        return self._through(self._first.push(text))

    def finish(self) -> list[Event]:
        return merged([*self._through(self._first.finish()), *self._second.finish()])

    @property
    def held(self) -> int:
        return self._first.held + self._second.held

    def _through(self, events: list[Event]) -> list[Event]:
        result: list[Event] = []
        for event in events:
            result += self._second.push(event.text) if isinstance(event, Content) else [event]
        return merged(result)


def whole_parser(
    tools: ToolFormat | None,
    thoughts: ReasoningFormat | None,
    offered: Collection[str],
    prompt: str,
    letters: dict[str, str],
) -> OutputParser:
    """Reads an answer by the formats of its calls and its thoughts, at least one of which is there.

    offered: the request's tools, as ToolFormat takes them.  prompt: the filled template's end.
    letters: what stands in the text for marks that are tokens.
    """
    first = tools or thoughts
    if first is not None and isinstance(first.form, ChannelFormat):
        return Channels(first.form, prompt, letters, calls=tools is not None)
    if tools is None and thoughts is not None:
        return thoughts(prompt, letters)
    if tools is not None and thoughts is None:
        return tools(offered, letters)
    if tools is None or thoughts is None:
        raise ValueError("the output has no parser")
    return ChainedParser(thoughts(prompt, letters), tools(offered, letters))


# Calls that a grammar forced, so that the whole answer is nothing else.


class RequiredCalls(CallText):
    """tool_choice required: an array of {"name": …, "parameters": …}. What of it was cut short
    before a call had begun says nothing, and is dropped."""

    def _start(self, ended: bool) -> bool:
        if (stop := self._eat_space()) is not None:
            return stop
        if not self._rest.startswith("["):
            return self._give_back()
        self._eat(1)
        return self._go(self._item)

    def finish(self) -> list[Event]:
        events = self._walk(ended=False)
        self._prefix = self._rest = ""
        return events


class OnlyCalls(OutputParser):
    """Forced calls in the model's own format. What of it was cut short before a call had begun says
    nothing, and is dropped."""

    def __init__(self, parser: OutputParser) -> None:
        self._parser = parser

    def push(self, text: str) -> list[Event]:
        return self._calls(self._parser.push(text))

    def finish(self) -> list[Event]:
        return self._calls(self._parser.finish())

    @staticmethod
    def _calls(events: list[Event]) -> list[Event]:
        return [event for event in events if isinstance(event, CallBegin | CallArguments)]


class NamedCall(OutputParser):
    """A named function: the text is its arguments.

    may_be_missing: without text there is no call: the answer was cut short in its thoughts.
    """

    def __init__(self, name: str, *, may_be_missing: bool = False) -> None:
        self._begin: list[Event] = [CallBegin(name)]
        self._may_be_missing = may_be_missing

    def push(self, text: str) -> list[Event]:
        if not text:
            return []
        begin, self._begin = self._begin, []
        return [*begin, CallArguments(text)]

    def finish(self) -> list[Event]:
        begin, self._begin = self._begin, []
        return [] if self._may_be_missing else begin
