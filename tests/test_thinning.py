"""What runs without --long: the first case, a share of the others, each value of each parameter."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests import thinning

ROOT = Path(__file__).parents[1]


def cases(**parameters: int) -> list[thinning.Values]:
    """All combinations of so many values of each."""
    ranges = [[(name, value) for value in range(count)] for name, count in parameters.items()]
    return [frozenset(values) for values in itertools.product(*ranges)]


@pytest.mark.parametrize("share", [1 / 2, 1 / 3, 1 / 6])
def test_the_share_of_many_cases_is_about_right_and_has_the_first(share: float) -> None:
    chosen = thinning.choose(cases(seed=300), share)
    assert 0 in chosen
    assert 300 * share - 3 <= len(chosen) <= 300 * share + 3
    # Spread: no long stretch is left out.
    places = sorted(chosen)
    assert max(b - a for a, b in itertools.pairwise(places)) <= 3 / share


def test_each_value_of_each_parameter_is_met() -> None:
    every = cases(isa=3, size=5, model=4)
    chosen = thinning.choose(every, 1 / 30)
    met = {value for number in chosen for value in every[number]}
    assert met == {value for values in every for value in values}
    assert len(chosen) < len(every) / 3


def test_of_one_parameter_with_several_names_a_share_will_do() -> None:
    together = [frozenset({("width", n), ("height", n)}) for n in range(8)]
    assert len(thinning.choose(together, 1 / 4)) < 4


def test_of_a_parameter_with_many_values_a_share_will_do() -> None:
    every = cases(seed=50, threads=2)
    chosen = thinning.choose(every, 1 / 10)
    assert len(chosen) < 15
    assert {value for number in chosen for value in every[number]} >= {
        ("threads", 0),
        ("threads", 1),
    }


@pytest.mark.parametrize("begin", [*thinning.SHARES, *thinning.LONGEST])
def test_what_is_named_there_exists(begin: str) -> None:
    file, _, test = begin.partition("::")
    assert (ROOT / file).exists()
    if test:
        assert f"def {test}" in (ROOT / file).read_text()
