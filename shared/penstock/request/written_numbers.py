"""Numbers of JSON that no double holds, with what was written of them: a schema that has one is
refused, where its outputs would be held to another."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

MOST_DIGITS = 15
"""Digits of a number that every double holds."""
LONG = re.compile(rb"[0-9.]{%d}|[0-9.][eE][+-]?[0-9]{3}" % (MOST_DIGITS + 1))
"""Matches in a text that has such a number."""


class WrittenNumber(float):
    """The double next to a number. text: the number as it was written."""

    text: str


def read_number(text: str) -> float:
    """The number of a JSON text that has a point or an exponent; a WrittenNumber where a double
    isn't exactly what is written."""
    number = float(text)
    if LONG.search(text.encode()) and Decimal(text) != Decimal(repr(number)):
        number = WrittenNumber(number)
        number.text = text
    return number


def decimal_of(number: int | float) -> Decimal:
    """Exactly what was written."""
    if isinstance(number, WrittenNumber):
        return Decimal(number.text)
    return Decimal(repr(number)) if isinstance(number, float) else Decimal(number)


def read_exactly(text: str) -> Any:
    """What a JSON text says, with WrittenNumbers. Raises ValueError and RecursionError."""
    return json.loads(text, parse_float=read_number)
