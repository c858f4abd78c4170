"""What steps take with drafts and without, whatever else the machine does meanwhile."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_engine.speculation.step_seconds import EXACT, StepSeconds, TimedStep
from tests.met import met

SEEN = st.lists(
    st.tuples(
        st.builds(TimedStep, st.integers(1, 300), st.integers(0, 300), st.booleans()),
        st.floats(1e-6, 10.0),
        st.floats(0.0, 10.0),
    ),
    max_size=20,
)


def alternating(
    seconds: StepSeconds, drafts: int, ratio: float, steps: int = 60, pace: float = 1.0
) -> None:
    """Steps of four, every other one with drafts that make it so many times as long."""
    for _ in range(steps // 2):
        seconds.observe(TimedStep(4, 0), pace, 0.0)
        seconds.observe(TimedStep(4, drafts), pace * ratio, 0.0)


@given(SEEN, st.integers(1, 600), st.integers(1, 600), st.floats(0.0, 10.0))
def test_any_step_takes_some_time_and_drafts_save_none(
    seen: list[tuple[TimedStep, float, float]], decodes: int, drafts: int, each: float
) -> None:
    steps = StepSeconds()
    for step in seen:
        steps.observe(*step)
    assert steps.of(decodes, each) > 0.0 or not seen
    slower = steps.slower(decodes, drafts, each)
    met("steps were seen", len(seen) > 1)
    assert slower.log >= 0.0
    assert all(map(math.isfinite, slower))


def test_what_was_seen_is_what_is_expected() -> None:
    seconds = StepSeconds()
    assert seconds.of(4) == 0.0
    alternating(seconds, 4, 1.5)
    found = seconds.slower(4, 4, 0.0)
    assert found.log == pytest.approx(math.log(1.5), abs=0.02)
    assert found.error < 0.1
    assert seconds.of(4) == pytest.approx(1.0, rel=0.02)
    assert found.log > seconds.slower(4, 2, 0.0).log > 0.0
    # Of what lies far off, little is known.
    assert seconds.slower(4, 40, 0.1).error > 2 * found.error


def test_of_what_was_never_seen_a_further_row_takes_what_one_of_a_prompt_does() -> None:
    seconds = StepSeconds()
    for _ in range(20):
        seconds.observe(TimedStep(4, 0), 1.0, 0.25)
    assert seconds.slower(4, 4, 0.25).log == pytest.approx(math.log(2.0), abs=0.02)
    assert seconds.of(2, 0.25) == pytest.approx(0.5, rel=0.02)
    assert seconds.of(3, 0.1) == pytest.approx(0.9, rel=0.02)


@pytest.mark.parametrize("busy", [2.0, 10.0])
def test_a_machine_that_is_busy_for_a_while_changes_nothing(busy: float) -> None:
    """It becomes so in the midst of steps without drafts, and is idle again when there are some."""
    seconds = StepSeconds()
    alternating(seconds, 4, 1.5)
    for _ in range(50):
        seconds.observe(TimedStep(4, 0), busy, 0.0)
    alternating(seconds, 4, 1.5, steps=4)
    assert seconds.slower(4, 4, 0.0).log == pytest.approx(math.log(1.5), abs=0.1)
    alternating(seconds, 4, 1.5, pace=busy)
    assert seconds.slower(4, 4, 0.0).log == pytest.approx(math.log(1.5), abs=0.1)
    assert seconds.of(4) == pytest.approx(busy, rel=0.2)


@pytest.mark.parametrize("held_up", [0, 4])
def test_one_step_that_is_held_up_says_little(held_up: int) -> None:
    seconds = StepSeconds()
    alternating(seconds, 4, 1.5)
    seconds.observe(TimedStep(4, held_up), 30.0, 0.0)
    assert seconds.slower(4, 4, 0.0).log == pytest.approx(math.log(1.5), abs=0.1)
    assert seconds.of(4) < 2.0


def test_what_has_changed_for_good_is_learnt() -> None:
    seconds = StepSeconds()
    alternating(seconds, 4, 1.2)
    alternating(seconds, 4, 2.0, steps=200)
    assert seconds.slower(4, 4, 0.0).log == pytest.approx(math.log(2.0), abs=0.1)


def test_noise_is_no_cost_and_takes_longer_to_learn_from() -> None:
    draws = random.Random(3)
    noisy, quiet = StepSeconds(), StepSeconds()
    for seconds, noise in ((quiet, 0.0), (noisy, 0.5)):
        for _ in range(200):
            for drafted, ratio in ((0, 1.0), (4, 1.5)):
                pace = math.exp(draws.gauss(0.0, noise))
                seconds.observe(TimedStep(4, drafted), ratio * pace, 0.0)
    found = noisy.slower(4, 4, 0.0)
    assert found.log == pytest.approx(math.log(1.5), abs=2 * found.error)
    assert found.error > quiet.slower(4, 4, 0.0).error


def test_what_a_step_costs_that_is_planned_alone_counts_against_drafts() -> None:
    """Without drafts the worker goes on by itself, and steps take less."""
    seconds = StepSeconds()
    for _ in range(40):
        seconds.observe(TimedStep(4, 0, alone=False), 1.0, 0.0)
        seconds.observe(TimedStep(4, 4), 1.5, 0.0)
        seconds.observe(TimedStep(4, 0), 1.2, 0.0)
    assert seconds.slower(4, 4, 0.0).log == pytest.approx(math.log(1.5), abs=0.05)


def test_no_step_takes_less_than_a_smaller_one() -> None:
    seconds = StepSeconds()
    alternating(seconds, 4, 0.5)
    assert seconds.slower(4, 4, 0.0).log < 0.05


def test_a_smaller_step_of_the_same_bucket() -> None:
    """A further row may seem to take longer than a whole step does."""
    steps = StepSeconds()
    larger = 4 * EXACT
    steps.observe(TimedStep(larger, 0), 0.001, 1.0)
    assert 0.0 < steps.of(larger - 1, 1.0) <= 0.001
    steps.observe(TimedStep(larger - 1, 0), 0.001, 1.0)
    assert 0.0 < steps.of(larger - 1, 1.0) < 0.002
