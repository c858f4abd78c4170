"""What a parser says about a piece of text."""

from __future__ import annotations

from typing import NamedTuple


class Content(NamedTuple):
    """Text for the reader."""

    text: str


class Reasoning(NamedTuple):
    """Text that the model thinks to itself."""

    text: str


class CallBegin(NamedTuple):
    """A call of the function `name`; the CallArguments up to the next CallBegin are its own."""

    name: str


class CallArguments(NamedTuple):
    """A piece of the arguments' JSON text."""

    text: str


Event = Content | Reasoning | CallBegin | CallArguments


def merged(events: list[Event]) -> list[Event]:
    """Neighbours of the same kind joined, empty ones left out."""
    result: list[Event] = []
    for event in events:
        if isinstance(event, CallBegin):
            result.append(event)
        elif event.text:
            last = result[-1] if result else None
            if last is not None and type(last) is type(event) and not isinstance(last, CallBegin):
                result[-1] = type(event)(last.text + event.text)
            else:
                result.append(event)
    return result
