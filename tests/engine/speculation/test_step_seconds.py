"""What steps take is always some time, whatever was seen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock_engine.speculation.step_seconds import EXACT, StepSeconds

SEEN = st.lists(
    st.tuples(st.integers(1, 600), st.floats(1e-6, 10.0), st.floats(0.0, 10.0)), max_size=20
)


@given(SEEN, st.integers(1, 600), st.floats(0.0, 10.0))
def test_no_step_takes_no_time(
    seen: list[tuple[int, float, float]], rows: int, each: float
) -> None:
    steps = StepSeconds()
    for step in seen:
        steps.observe(*step)
    assert steps.of(rows, each) > 0.0 or not seen


def test_a_smaller_step_of_the_same_bucket() -> None:
    """A further row may seem to take longer than a whole step does."""
    steps = StepSeconds()
    larger = 4 * EXACT
    steps.observe(larger, 0.001, 1.0)
    assert 0.0 < steps.of(larger - 1, 1.0) < 0.001
    steps.observe(larger - 1, 0.001, 1.0)


def test_what_was_seen_long_ago_still_counts_where_nothing_else_was() -> None:
    steps = StepSeconds()
    steps.observe(4, 2.0, 0.0)
    steps.observe(8, 1.0, 0.0)  # They contradict each other.
    for _ in range(20_000):
        steps.observe(1, 1.0, 0.0)
    assert 1.0 <= steps.of(4, 0.0) == steps.of(8, 0.0) <= 2.0
