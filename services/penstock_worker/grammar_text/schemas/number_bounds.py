"""Bounds of numbers as llguidance can be trusted with them.

Of numbers above 2 and up to 2.5 it takes 2 for one, and of those from -1.5 and below -1 it takes
-1: where an integer is excluded, and the other bound is less than 1 away.
"""

from __future__ import annotations

from decimal import Decimal
from math import inf
from typing import Any

DIGITS = 15
"""The digits of a bound that the library sees; of more, it doesn't see the last."""
LEAST = 1e-16
"""The number that stands for the one next to zero."""


def with_careful_bounds(node: dict[str, Any]) -> dict[str, Any]:
    """A schema whose own bounds are careful."""
    low = max(
        (node[name] for name in ("minimum", "exclusiveMinimum") if name in node), default=-inf
    )
    high = min(
        (node[name] for name in ("maximum", "exclusiveMaximum") if name in node), default=inf
    )
    if not 0 < high - low < 1:
        return node
    if node.get("exclusiveMinimum") == low and float(low).is_integer():
        del node["exclusiveMinimum"]
        node["minimum"] = _next_to(low, 1)
    if node.get("exclusiveMaximum") == high and float(high).is_integer():
        del node["exclusiveMaximum"]
        node["maximum"] = _next_to(high, -1)
    return node


def _next_to(number: float, side: int) -> float:
    """The number above or below an integer that the library can tell from it."""
    if not number:
        return side * LEAST
    whole = Decimal(int(number))
    return float(whole + side * Decimal(10) ** (len(str(abs(int(number)))) - DIGITS))
