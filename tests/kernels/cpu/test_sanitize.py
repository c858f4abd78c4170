"""What the sanitizers are given: all instruction sets in two turns, and what else is asked for."""

from __future__ import annotations

import pytest

from penstock_kernels.cpu import library
from tests.instruction_sets import usable_here
from tests.kernels.cpu import sanitize


def test_every_instruction_set_has_a_turn() -> None:
    named = [name for turn in sanitize.TURNS for name in turn]
    assert sorted(named) == sorted(library.INSTRUCTION_SETS)


@pytest.mark.usefixtures("loaded")
def test_turns_that_follow_each_other_have_all_of_this_processor() -> None:
    for first in (0, 7, 2_114):
        turns = [sanitize.instruction_sets(first + turn) for turn in range(len(sanitize.TURNS))]
        assert {name for turn in turns for name in turn} == set(usable_here())
        assert all(turns)
    assert sanitize.instruction_sets(None) == usable_here()


@pytest.mark.usefixtures("loaded")
def test_those_with_the_bits_of_avx2_are_compared_with_it() -> None:
    for sample in range(len(sanitize.TURNS)):
        turn = sanitize.instruction_sets(sample)
        for name in {"amx", "avx512vnni", "avxvnni"}.intersection(turn):
            assert "avx2" in turn, name


def test_arguments_are_pytests_own() -> None:
    assert sanitize.arguments(["-x"], long=True)[-1] == "-x"
    assert not any(each.startswith("-k") for each in sanitize.arguments([], long=True))
    assert f"-knot ({sanitize.LEFT_OUT})" in sanitize.arguments([], long=False)
