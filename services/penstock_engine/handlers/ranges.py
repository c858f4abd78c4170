"""Numbers and token ids within their bounds."""

from __future__ import annotations

import math
from collections.abc import Collection

from penstock.errors import InvalidRequest

MAX_COUNT = 2**31 - 1


def check_ids(name: str, ids: Collection[int], vocab_size: int) -> None:
    """Raises InvalidRequest for an id that the vocabulary lacks."""
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):
        bad = next(token for token in ids if not 0 <= token < vocab_size)
        raise InvalidRequest(
            f"{name}: token id {bad} is not in the vocabulary, 0 to {vocab_size - 1}", param=name
        )


def check_number(name: str, value: float, low: float, high: float) -> None:
    """Raises InvalidRequest for a number that isn't finite, or out of range."""
    if not (math.isfinite(value) and low <= value <= high):
        raise InvalidRequest(f"{name} must be in {low:g} to {high:g}, not {value!r}", param=name)


def check_whole(name: str, value: int, low: int, high: int) -> None:
    """Raises InvalidRequest for a number out of range."""
    if not low <= value <= high:
        raise InvalidRequest(f"{name} must be in {low} to {high}, not {value}", param=name)
