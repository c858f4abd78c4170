"""What computing a prompt takes, estimated from steps that were seen."""

from __future__ import annotations

import pytest

from penstock_engine.policies.forecast import StepCostForecast


def seen(*steps: tuple[int, int]) -> StepCostForecast:
    """(tokens, how often), of steps that take 10 ms and one more for each token."""
    cost = StepCostForecast()
    for tokens, count in steps:
        for _ in range(count):
            cost.observe(tokens, 0.010 + 0.001 * tokens)
    return cost


def test_small_steps_say_nothing_of_a_prompt() -> None:
    assert StepCostForecast().of_prompt(4000, 2048) == 0.0
    assert seen((16, 500)).of_prompt(4000, 2048) == 0.0
    assert seen((16, 500)).of_prompt(40, 2048) == 0.0


def test_what_was_seen_lately_is_fitted() -> None:
    cost = seen((16, 30), (1200, 10), (16, 5))
    assert cost.of_prompt(4096, 2048) == pytest.approx(2 * 0.010 + 4.096)
    assert cost.of_prompt(512, 2048) == pytest.approx(0.010 + 0.512)


def test_large_steps_are_remembered_through_many_small_ones() -> None:
    cost = seen((2048, 3), (16, 5000))
    assert cost.of_prompt(4096, 2048) == pytest.approx(2 * 2.058)
    assert cost.of_prompt(1024, 2048) == pytest.approx(2.058 / 2)
    assert cost.of_prompt(8192, 8192) == 0.0, "twice as large as any"


def test_one_slow_step_is_not_what_all_cost() -> None:
    cost = StepCostForecast()
    cost.observe(1024, 20.0)
    for _ in range(10):
        cost.observe(1024, 1.0)
    for _ in range(500):
        cost.observe(16, 0.01)
    assert cost.of_prompt(1024, 1024) == pytest.approx(1.0, rel=0.05)
