"""A name for what a schema says of names that it doesn't list."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from penstock_grammars.schemas.complement import has, ranges_of
from penstock_grammars.schemas.keywords import Unservable

_PLAIN = [*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-. /:"]
_NAMES = ("other", "value", "x", "a", "1", "_", "-", "other_value", "X")
MAX_REPETITIONS = 64


def matched(pattern: str, name: str) -> bool:
    """Whether the pattern matches the name. Raises Unservable where Python can't read it."""
    try:
        return re.search(pattern, name) is not None
    except (re.error, RecursionError, OverflowError):
        raise Unservable(f"the pattern {pattern[:100]} can't be tried") from None


def name_for(pattern: str) -> str:
    """A name that the pattern matches. Raises Unservable."""
    for name in _NAMES:
        if matched(pattern, name):
            return name
    try:
        found = "".join(_texts(_parser.parse(pattern)))
    except (re.error, RecursionError, OverflowError):
        found = None
    if found is None or not matched(pattern, found):
        raise Unservable(f"no name can be found for the pattern {pattern[:100]}")
    return found


def name_but(names: Iterable[str], patterns: Iterable[str]) -> str | None:
    """A name that isn't one of these, and that no pattern matches; None where none is found.
    Raises Unservable."""
    names, patterns = set(names), list(patterns)
    for name in _NAMES:
        if name not in names and not any(matched(pattern, name) for pattern in patterns):
            return name
    return None


def _texts(steps: Any) -> Iterator[str]:
    """Yields for each step a text that it matches, a short one."""
    for kind, value in steps:
        if kind in (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN):
            ranges = ranges_of(kind, value)
            plain = (each for each in _PLAIN if has(ranges, ord(each)))
            yield next(plain, "") or "".join(chr(low) for low, _ in ranges[:1])
        elif kind == sre.BRANCH:
            yield from _texts(value[1][0])
        elif kind == sre.SUBPATTERN:
            yield from _texts(value[3])
        elif kind in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            yield "".join(_texts(value[2])) * min(value[0], MAX_REPETITIONS)
        elif kind != sre.AT:
            raise Unservable("no name can be found for so special a pattern")
