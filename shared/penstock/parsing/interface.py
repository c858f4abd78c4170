"""What a parser is, what it says about a piece of text, and how a plug-in brings one."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from itertools import groupby
from typing import ClassVar, NamedTuple


class Content(NamedTuple):
    """Text for the reader."""

    text: str


class Reasoning(NamedTuple):
    """Text that the model thinks to itself."""

    text: str


class CallBegin(NamedTuple):
    """A call of the function `name`; the CallArguments up to the next CallBegin are its own.

    id: the call's, where the model wrote one that the conversation goes on with; else empty.
    """

    name: str
    id: str = ""


class CallArguments(NamedTuple):
    """A piece of the arguments' JSON text."""

    text: str


Event = Content | Reasoning | CallBegin | CallArguments


def merged(events: list[Event]) -> list[Event]:
    """Neighbours of the same kind joined, empty ones left out."""
    shown = [event for event in events if isinstance(event, CallBegin) or event.text]
    result: list[Event] = []
    for kind, alike in groupby(shown, type):
        if kind is CallBegin:
            result += alike
        else:
            # All at once: a call's arguments may come letter by letter.
            text = "".join([event.text for event in alike if not isinstance(event, CallBegin)])
            result.append(kind(text))
    return result


class OutputParser(ABC):
    """Reads one answer.

    Contract: the events of `push` and `finish` together, neighbours of a kind joined, depend on the
    whole text only, not on its pieces.  Text is held back only while it can still become something
    else, and never without a bound.  No text of the model's raises.
    """

    @abstractmethod
    def push(self, text: str) -> list[Event]:
        """Takes the next piece; gives what is certain by now."""

    @abstractmethod
    def finish(self) -> list[Event]:
        """The text has ended, whole or cut short: gives the rest."""

    @property
    def held(self) -> int:
        """Characters at the end of the text so far that no event has reported, but one still may.
        It says which tokens are whose: a parser that holds text back should know."""
        return 0


PIECE = 1024
"""Characters of a longer text that are read at a time."""
ScanState = Callable[[bool], bool]
"""Takes whether the text has ended. Returns whether there is more to do at once: it has moved on to
another state, or it needs no more text."""


class WalkingParser(OutputParser):
    """A walk over the text, whose state is a method. `_rest` is text that was not dealt with.

    first: the state at the beginning.
    """

    def __init__(self, first: ScanState) -> None:
        self._rest = ""
        self._events: list[Event] = []
        self._state = first

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        # States cut what they are done with off the rest, which takes as long as the rest is.
        for at in range(0, len(text), PIECE):
            self._rest += text[at : at + PIECE]
            events += self._walk(ended=False)
        return events if len(text) <= PIECE else merged(events)

    def finish(self) -> list[Event]:
        return self._walk(ended=True)

    @property
    def held(self) -> int:
        return len(self._rest)

    def _walk(self, *, ended: bool) -> list[Event]:
        while self._state(ended):
            pass
        events, self._events = merged(self._events), []
        return events

    def _go(self, state: ScanState) -> bool:
        self._state = state
        return True


class ToolParser(OutputParser):
    """Finds calls in an answer's content. Gives no Reasoning.

    tools: names of the functions that the request offers.
    """

    needs_special_tokens: ClassVar[bool] = False
    """Whether the format's marks are special tokens, which else are left out of the text."""

    def __init__(self, tools: Collection[str]) -> None:
        self.tools = frozenset(tools)

    @staticmethod
    def new_id() -> str:
        """Returns the id of a call, which can't be guessed, so another client's call can't be
        answered."""
        return f"call_{secrets.token_hex(12)}"


class ReasoningParser(OutputParser):
    """Parts thinking from content. Gives no calls.

    prompt: the filled chat template, or its end: it may open or close a block of thinking itself.
    """

    closing_tag: ClassVar[str | None] = None
    """What ends the thinking, for the count of its tokens; None: they are not counted."""

    def __init__(self, prompt: str) -> None:
        self.prompt = prompt
