"""A part of each test's cases, spread evenly over them, where all of them take too long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

GOLDEN = 0.6180339887
"""Multiples of it, modulo 1, lie evenly: what they choose follows no period of the parameters."""


def numbered(items: Iterable[pytest.Item]) -> Iterator[tuple[pytest.Item, int]]:
    """Each with its number among its test's cases, from 0."""
    cases: Counter[str] = Counter()
    for item in items:
        name = item.nodeid.partition("[")[0]
        yield item, cases[name]
        cases[name] += 1


def in_share(case: int, share: float) -> bool:
    """Whether a case is of that share of all. The first one always is."""
    return case * GOLDEN % 1 < share
