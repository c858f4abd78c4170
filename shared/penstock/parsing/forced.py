"""Calls that a grammar forced, so that the whole answer is nothing else."""

from __future__ import annotations

from penstock.parsing.call_text import CallText
from penstock.parsing.events import CallArguments, CallBegin, Event
from penstock.parsing.interface import OutputParser


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
