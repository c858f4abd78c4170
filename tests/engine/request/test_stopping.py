"""When tokens count as a loop."""

from __future__ import annotations

import random
from typing import Any

import pytest

from penstock.protocol.common import Repetition
from penstock_engine.request.stopping import repeats
from tests.engine.scores import loops


@pytest.mark.parametrize("letters", [1, 2, 3])
def test_a_loop_is_what_writing_out_each_pattern_says(letters: int) -> None:
    draw = random.Random(letters)
    found = {True: 0, False: 0}
    for _ in range(4000):
        largest = draw.randint(1, 6)
        bound = Repetition(draw.randint(1, largest), largest, draw.randint(2, 4))
        tokens = [draw.randrange(letters) for _ in range(draw.randint(0, 8))]
        tokens += [draw.randrange(letters) for _ in range(draw.randint(1, 5))] * draw.randint(1, 5)
        expected = loops(tokens, bound)
        assert repeats(tokens, bound) == expected, (tokens, bound)
        found[expected] += 1
    assert found[True] > 100
    assert found[False] > 100


def test_what_came_before_the_loop_does_not_hide_it() -> None:
    bound = Repetition(2, 4, 3)
    assert repeats([9, 9, 1, 2, 3, 1, 2, 3, 1, 2, 3], bound)
    assert not repeats([1, 2, 3, 1, 2, 3, 1, 2, 3, 9], bound)
    assert not repeats([], bound)


class Token:
    """A token id that counts how often two are compared."""

    compared = 0

    def __init__(self, number: int) -> None:
        self._number = number

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        Token.compared += 1
        return isinstance(other, Token) and self._number == other._number


def test_one_token_again_and_again_takes_no_longer_than_others() -> None:
    """Any size may be the pattern's then, and each ends at the one token in the middle."""
    bound = Repetition(min_pattern=128, max_pattern=256, count=16)
    numbers = [5] * 2500 + [6] + [5] * 1595
    Token.compared = 0
    tokens: Any = [Token(number) for number in numbers]
    assert not repeats(tokens, bound)
    assert Token.compared < 3 * len(tokens)
