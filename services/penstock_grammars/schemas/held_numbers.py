"""Numbers of a schema that llguidance holds exactly. It reads all of them as doubles, its bounds of
integers as 64 bits, and of a fraction it is to be trusted with 15 digits.

A listed value that it would change is refused; a bound is moved inwards to the next one that it
holds, so that no document is admitted that the schema refuses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

from penstock.request.written_numbers import decimal_of
from penstock_grammars.schemas.keywords import Unservable

DIGITS = 15
"""Digits of a number that it always holds."""
SAFE = 2**53
"""Below it every integer is a double; from it on, one more or less may be none."""
LARGEST = 2**63 - 1024
"""The largest double of 64 bits."""
LARGEST_STEP = 2**32 // 10
"""The largest `multipleOf`, by its digits without the point: it is counted in 32 bits, a digit at a
time."""


def with_held_numbers(node: dict[str, Any]) -> dict[str, Any]:
    """A schema whose own numbers are held exactly. Raises Unservable, which says which isn't."""
    for name in ("const", "enum"):
        for value in _numbers(node.get(name)):
            if not _is_held(decimal_of(value)):
                raise Unservable(
                    f"{name} has {_shown(value)}, which can't be held exactly: integers can be up "
                    f"to 2^53, and other numbers of up to {DIGITS} digits; write it as a string"
                )
    step = node.get("multipleOf")
    if step is not None:
        _check_step(step)
    _hold(node, "minimum", "exclusiveMinimum", _least_from)
    _hold(node, "maximum", "exclusiveMaximum", _greatest_up_to)
    return node


def _numbers(value: Any) -> Iterator[int | float]:
    stack = [value]
    while stack:
        each = stack.pop()
        if isinstance(each, dict):
            stack += each.values()
        elif isinstance(each, list):
            stack += each
        elif isinstance(each, int | float) and not isinstance(each, bool):
            yield each


def _is_held(number: Decimal) -> bool:
    if _digits(number) <= DIGITS:
        return True
    return number == number.to_integral_value() and abs(number) <= LARGEST and _is_double(number)


def _digits(number: Decimal) -> int:
    return len("".join(map(str, number.as_tuple().digits)).strip("0"))


def _is_double(number: Decimal) -> bool:
    return Decimal(float(number)) == number


def _check_step(step: int | float) -> None:
    exact = decimal_of(step)
    scaled = int("".join(map(str, exact.as_tuple().digits)).strip("0") or "0")
    if scaled > LARGEST_STEP:
        raise Unservable(
            f"multipleOf is {_shown(step)}, which can't be held exactly: without its point and the "
            f"zeros at its ends it may be up to {LARGEST_STEP}"
        )


def _hold(
    node: dict[str, Any],
    inclusive: str,
    exclusive: str,
    held: Callable[[Decimal], Decimal | None],
) -> None:
    """Moves a bound inwards to a number that is held."""
    sign = 1 if inclusive == "minimum" else -1
    for name in (inclusive, exclusive):
        if name not in node:
            continue
        given = decimal_of(node[name])
        is_large = abs(given) >= SAFE
        if not is_large and _is_held(given):
            continue
        wanted = given
        if name == exclusive and is_large:
            # Of an integer, the library adds 1 to a double.
            wanted = _inwards(given, sign)
        number = held(wanted)
        if number is None:
            raise Unservable(
                f"{name} is {_shown(node[name])}, and no number beyond it can be held exactly: "
                f"bounds may be up to {LARGEST}"
            )
        del node[name]
        whole = number == number.to_integral_value()
        _tighten(node, inclusive, int(number) if whole else float(number), sign)


def _tighten(node: dict[str, Any], name: str, bound: int | float, sign: int) -> None:
    if name not in node or (bound - node[name]) * sign > 0:
        node[name] = bound


def _inwards(number: Decimal, sign: int) -> Decimal:
    """The integer next to a large number."""
    rounding = ROUND_FLOOR if sign > 0 else ROUND_CEILING
    return number.to_integral_value(rounding=rounding, context=_WIDE) + sign


def _least_from(number: Decimal) -> Decimal | None:
    """The least number that is held, from this one on; None where there is none."""
    turned = _greatest_up_to(-number)
    return None if turned is None else -turned


def _greatest_up_to(number: Decimal) -> Decimal | None:
    if number < -LARGEST:
        return None
    if number > LARGEST:
        return Decimal(LARGEST)
    if _is_held(number):
        return number
    if abs(number) < SAFE:
        return Context(prec=DIGITS, rounding=ROUND_FLOOR).create_decimal(number)
    double = float(number)
    if Decimal(double) > number:
        double = math.nextafter(double, -math.inf)
    return Decimal(double)


_WIDE = Context(prec=1000)


def _shown(number: int | float) -> str:
    return str(decimal_of(number))[:100]
