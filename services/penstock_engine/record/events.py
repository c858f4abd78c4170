"""The core's event methods, and how their arguments are read back.

The table is made of EngineCore's own signatures, so that a new event is recorded from the day on
which it exists: an event is a public method whose last parameter is `now`.
"""

from __future__ import annotations

import inspect
import typing
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock_engine.core import EngineCore

READERS = ("check", "next_deadline")
"""Public methods that change nothing."""

STEP = "step"


@dataclass(frozen=True)
class EventMethod:
    """decoder: of the arguments, `now` included, as one array."""

    name: str
    decoder: msgspec.msgpack.Decoder[Any]


def public_methods() -> dict[str, Any]:
    return {
        name: function
        for name, function in vars(EngineCore).items()
        if inspect.isfunction(function) and not name.startswith("_")
    }


def event_methods() -> dict[str, EventMethod]:
    """Methods that take events, by name, in the order of the class; `step` is not among them."""
    found = {}
    for name, function in public_methods().items():
        parameters = list(inspect.signature(function).parameters)
        if name != STEP and parameters[-1] == "now":
            hints = typing.get_type_hints(function)
            types = tuple(hints[parameter] for parameter in parameters[1:])
            decoder = msgspec.msgpack.Decoder(tuple[types])  # type: ignore[valid-type]
            found[name] = EventMethod(name, decoder)
    return found
