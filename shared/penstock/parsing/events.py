"""What a parser says about a piece of text."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple


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
    told = [event for event in events if isinstance(event, CallBegin) or event.text]
    result: list[Event] = []
    for kind, alike in groupby(told, type):
        if kind is CallBegin:
            result += alike
        else:
            # All at once: a call's arguments may come letter by letter.
            text = "".join([event.text for event in alike if not isinstance(event, CallBegin)])
            result.append(kind(text))
    return result
