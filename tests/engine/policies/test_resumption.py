"""What becomes of a preempted sequence's KV, by what the alternatives cost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock_engine.policies.forecast import StepCostForecast
from penstock_engine.scheduler.resumption import Resumption

VICTIM: Any = SimpleNamespace(
    progress=SimpleNamespace(computed=100), table=SimpleNamespace(num_blocks=10)
)


def cost(each: float) -> StepCostForecast:
    """The cost of steps that take `each` seconds a token."""
    measured = StepCostForecast()
    for tokens in range(100, 1100, 100):
        measured.observe(tokens, each * tokens)
    return measured


@pytest.mark.parametrize(("copy_seconds", "expected"), [(0.009, False), (0.011, True)])
def test_auto_takes_what_costs_less(copy_seconds: float, expected: bool) -> None:
    """100 tokens of a millisecond each, or 10 blocks."""
    resumption = Resumption("auto", cost(0.001), 2048)
    resumption.attach(8, copy_seconds)
    assert resumption.recomputes(VICTIM) is expected


def test_auto_keeps_what_it_can_where_nothing_is_known_or_there_is_no_host() -> None:
    for known, host_blocks in ((StepCostForecast(), 8), (cost(0.001), 0)):
        resumption = Resumption("auto", known, 2048)
        resumption.attach(host_blocks, 1.0)
        assert not resumption.recomputes(VICTIM)


def test_the_other_modes_do_not_weigh() -> None:
    for mode, expected in (("recompute", True), ("swap", False)):
        resumption = Resumption(mode, cost(0.001), 2048)  # type: ignore[arg-type]
        resumption.attach(8, 1.0)
        assert resumption.recomputes(VICTIM) is expected
