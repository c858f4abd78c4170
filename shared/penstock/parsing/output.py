"""The parser of a whole answer: reasoning first, then calls in what is content."""

from __future__ import annotations

from penstock.parsing.events import Content, Event, merged
from penstock.parsing.interface import OutputParser


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
