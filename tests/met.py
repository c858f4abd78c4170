"""Whether a property's examples met the case that it is about.

A property that never meets its case passes whatever the code does. So each says what it is about,
with whether the present example is such a one; at the end of the test there must have been one
(conftest.py). `pytest --met` lists how often.
"""

from __future__ import annotations

from collections import Counter

_counts: Counter[str] = Counter()
_examples: Counter[str] = Counter()


def met(case: str, this_one: object) -> None:
    """This example is one of the case, or it isn't. Called in each example."""
    _examples[case] += 1
    _counts[case] += bool(this_one)


def take() -> dict[str, tuple[int, int]]:
    """Returns (how often each case was met, in how many examples) since the last call."""
    found = {case: (_counts[case], examples) for case, examples in _examples.items()}
    _counts.clear()
    _examples.clear()
    return found
