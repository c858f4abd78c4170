"""Texts that are told again: what comes out is what was given, and time follows the curve."""

from __future__ import annotations

import argparse
import random

import pytest

from loadtest.draft_replay import Cell, row, short
from loadtest.drafting.curve import Curve
from loadtest.drafting.replay import Text, renumbered, tell

CURVE = Curve({1: 0.010, 2: 0.011, 4: 0.012, 8: 0.014, 16: 0.024})


def noise(draws: random.Random, count: int) -> list[int]:
    return [draws.randrange(40_000) for _ in range(count)]


@pytest.fixture(scope="module")
def copies() -> list[Text]:
    draws = random.Random(1)
    texts = [noise(draws, 40) for _ in range(4)]
    return [Text(noise(draws, 9) + text + noise(draws, 3), text) for text in texts]


def test_a_curve_goes_through_what_was_measured() -> None:
    assert [CURVE(rows) for rows in (1, 2, 3, 16)] == pytest.approx([0.010, 0.011, 0.0115, 0.024])
    assert CURVE(32) == pytest.approx(0.044)


def test_ids_are_equal_where_they_were_equal() -> None:
    first, second = renumbered([Text([9, 40_000], [9]), Text([7], [40_000])])
    assert first == Text([16, 17], [16])
    assert second == Text([18], [17])


@pytest.mark.parametrize("streams", [1, 3])
def test_copies_come_faster_with_drafts(copies: list[Text], streams: int) -> None:
    off, drafts = (tell(copies, streams, method, CURVE) for method in ("off", "suffix"))
    assert off.tokens == drafts.tokens == 4 * 40
    assert off.drafted == 0
    assert drafts.kept > 80
    assert drafts.seconds < 0.6 * off.seconds
    if streams == 1:
        # Each prompt's step gives a token, and each of the others one.
        prompts = sum(CURVE(len(text.prompt)) for text in copies)
        assert off.seconds == pytest.approx(prompts + 4 * 39 * CURVE(1))


def test_whoever_decides_about_drafts_sees_what_steps_take_by_the_curve(
    copies: list[Text],
) -> None:
    """Where a row costs more than a token, drafts are few although all of them are right; and how
    many there are doesn't depend on the machine that tells it."""
    dear = Curve({1: 0.010, 64: 2.5})
    off, *drafts = (tell(copies, 3, method, dear) for method in ("off", "suffix", "suffix"))
    assert drafts[0].seconds == drafts[1].seconds
    assert drafts[0].seconds < 1.03 * off.seconds
    assert drafts[0].drafted < 0.2 * off.tokens


def test_noise_costs_nothing_but_looks(copies: list[Text]) -> None:
    draws = random.Random(2)
    texts = [Text(noise(draws, 30), noise(draws, 40)) for _ in range(4)]
    flags = argparse.Namespace(method="ngram", rounds=1)
    found = row(Cell("random", 2), "any", texts, {1: 0.01, 64: 0.02}, flags)
    assert (found["by_steps"], found["drafted"], found["kept"]) == (1.0, 0.0, 0.0)
    assert found["faster"] == pytest.approx(1.0, abs=0.05)
    assert short({"rows": [{**found, "faster": 0.97}, found | {"faster": 0.99}]}) == [
        "random at 2 streams, any: 0.970"
    ]
