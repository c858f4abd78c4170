"""The parser of a whole answer: reasoning first, then calls in what is content."""

from __future__ import annotations

from collections.abc import Collection

from penstock.parsing.channels import Channels
from penstock.parsing.events import Content, Event, merged
from penstock.parsing.format import ChannelFormat
from penstock.parsing.interface import OutputParser
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
