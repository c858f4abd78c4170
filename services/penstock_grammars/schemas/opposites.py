"""What fails a keyword that speaks of one number or text, said without `not`.

Where all of it can't be said, a part is, marked as narrowed: documents that certainly fail.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from decimal import Decimal
from math import floor
from typing import Any

from penstock_grammars.schemas.complement import all_but, complement
from penstock_grammars.schemas.keywords import NARROWED, Schema

INTERVALS = 8
"""The intervals between multiples of a number that are written out."""
_EDGE = Decimal("0.1")
"""How far from the multiples an interval ends, at most."""
_FAR = 10**15
"""The size from which multiples of a number can't be distinguished reliably."""


def in_part(keyword: str) -> dict[str, str]:
    """The mark of a part of what fails a keyword."""
    return {NARROWED: f"this not is not supported: all that fails {keyword!r} can't be described"}


def outside(schema: dict[str, Any], kinds: frozenset[str]) -> Iterator[Schema]:
    """Yields schemas of numbers and sizes that are outside of one of a schema's bounds."""
    for name, kind, other, by in (
        ("minimum", "number", "exclusiveMaximum", 0),
        ("maximum", "number", "exclusiveMinimum", 0),
        ("exclusiveMinimum", "number", "maximum", 0),
        ("exclusiveMaximum", "number", "minimum", 0),
        ("minLength", "string", "maxLength", -1),
        ("maxLength", "string", "minLength", 1),
        ("minItems", "array", "maxItems", -1),
        ("maxItems", "array", "minItems", 1),
    ):
        if name in schema and kind in kinds:
            bound = schema[name] + by
            if kind == "number" or bound >= 0:
                yield {"type": kind, other: bound}


def no_multiples(step: float, within: Any) -> Iterator[Schema]:
    """Numbers between multiples, near zero or the bounds that are known."""
    known = within if isinstance(within, dict) else {}
    exact = Decimal(str(step))
    low = known.get("minimum", known.get("exclusiveMinimum"))
    high = known.get("maximum", known.get("exclusiveMaximum"))
    first = -INTERVALS // 2
    if low is not None and abs(low) < _FAR:
        first = floor(Decimal(str(low)) / exact)
    elif high is not None and abs(high) < _FAR:
        first = floor(Decimal(str(high)) / exact) - INTERVALS + 1
    edge = min(exact / 10, _EDGE)
    for at in range(first, first + INTERVALS):
        ends = [float(exact * at + edge), float(exact * (at + 1) - edge)]
        if max(map(abs, ends)) < _FAR:
            bounds = {"minimum": ends[0], "maximum": ends[1]}
            yield {"type": "number", **bounds, **in_part("multipleOf")}


def other_texts(pattern: str) -> Iterator[Schema]:
    """Yields the texts that the pattern doesn't match. Raises Unservable."""
    yield {"type": "string", "pattern": complement(pattern), **in_part("pattern")}


def other_formats(name: str) -> Iterator[Schema]:
    """Texts that are certainly not of a format."""
    yield {"type": "string", "pattern": _NOT_OF[name], **in_part("format")}


_NOT_OF = {
    **dict.fromkeys(("date-time", "time", "uri", "ipv6"), "^[^:]*$"),
    "date": "^[^0-9]*$",
    "duration": "^[^P]*$",
    "email": "^[^@]*$",
    "hostname": "[ /:@]",
    "ipv4": "[^0-9.]",
    "uuid": "^[^-]*$",
}
"""Texts without what each text of the format has, or with what none has."""


def except_scalars(kind: str, values: list[Any]) -> Iterator[Schema]:
    """Yields schemas of all values of a type but these; the type is neither array nor object."""
    if not values:
        yield {"type": kind}
    elif kind == "boolean":
        yield from ({"const": each} for each in (False, True) if each not in values)
    elif kind == "number":
        yield from _numbers_between(sorted(set(values)))
    elif kind == "string":
        yield {"type": "string", "pattern": all_but(values)}


def _numbers_between(values: list[float]) -> Iterator[Schema]:
    yield {"type": "number", "exclusiveMaximum": values[0]}
    for low, high in itertools.pairwise(values):
        yield {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}
    yield {"type": "number", "exclusiveMinimum": values[-1]}
