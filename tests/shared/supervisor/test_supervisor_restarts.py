"""The restart policy under a clock of our own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.supervisor.restarts import OUT_OF_MEMORY, GiveUp, Restart, RestartPolicy, describe
from tests.met import met


def delays(policy: RestartPolicy, lives: list[float], *, ready: bool) -> list[float | None]:
    """The answer to each death: a delay, or None for giving up. lives: seconds that each lasted."""
    now, answers = 1000.0, []
    for life in lives:
        policy.started(now)
        now += life
        decision = policy.died(1, now, system_was_ready=ready)
        if isinstance(decision, GiveUp):
            return [*answers, None]
        answers.append(decision.delay)
        now += decision.delay
    return answers


def test_the_delay_doubles_up_to_five_seconds() -> None:
    assert delays(RestartPolicy(), [1.0] * 9, ready=True) == pytest.approx(
        [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    )


def test_a_long_life_starts_the_delay_over() -> None:
    assert delays(RestartPolicy(), [1, 1, 1, 30, 1], ready=True) == pytest.approx(
        [0.1, 0.2, 0.4, 0.1, 0.2]
    )


def test_the_fifth_death_before_readiness_is_the_last() -> None:
    assert delays(RestartPolicy(), [1.0] * 6, ready=False) == pytest.approx(
        [0.1, 0.2, 0.4, 0.8, None]
    )


def test_slow_deaths_before_readiness_count_as_well() -> None:
    """A model that takes half a minute to load, and fails then, would be loaded for ever."""
    assert delays(RestartPolicy(), [31.0] * 20, ready=False)[-1] is None
    assert len(delays(RestartPolicy(), [31.0] * 20, ready=False)) == 5


def test_lack_of_memory_is_final_until_the_system_was_ready() -> None:
    policy = RestartPolicy()
    policy.started(0.0)
    refused = policy.died(OUT_OF_MEMORY, 1.0, system_was_ready=False)
    assert isinstance(refused, GiveUp)
    assert "not enough memory" in refused.why
    assert "--max-model-len or --num-kv-blocks takes less memory" in refused.why
    assert policy.died(OUT_OF_MEMORY, 1.0, system_was_ready=True) == Restart(0.1)


def test_who_is_killed_at_every_start_is_told_what_takes_less_memory() -> None:
    """Under a container's limit that is too small the kernel says no more than SIGKILL."""
    why = {}
    for code in (-9, -11):
        policy = RestartPolicy()
        for _ in range(5):
            policy.started(0.0)
            last = policy.died(code, 1.0, system_was_ready=False)
        assert isinstance(last, GiveUp)
        why[code] = last.why
    assert "--max-model-len or --num-kv-blocks takes less memory" in why[-9]
    assert "memory" not in why[-11]


@pytest.mark.parametrize("ready", [True, False])
def test_exit_code_78_is_final_at_once(ready: bool) -> None:
    policy = RestartPolicy()
    policy.started(0.0)
    assert isinstance(policy.died(78, 100.0, system_was_ready=ready), GiveUp)


@given(st.lists(st.floats(0, 100), max_size=200), st.integers(-64, 77))
def test_a_ready_system_never_gives_up_and_never_waits_long(lives: list[float], code: int) -> None:
    met("several deaths in a row", sum(life < 1 for life in lives) > 2)
    policy, now = RestartPolicy(), 0.0
    for life in lives:
        policy.started(now)
        now += life
        decision = policy.died(code, now, system_was_ready=True)
        assert isinstance(decision, Restart)
        assert 0.1 <= decision.delay <= 5.0
        now += decision.delay


def test_statuses_are_told_in_words() -> None:
    assert describe(3) == "with exit status 3"
    assert describe(-9) == "killed by SIGKILL (was memory short?)"
    assert describe(-7).startswith("killed by SIGBUS (did a file of weights become shorter")
    assert describe(-15) == "killed by SIGTERM"
    assert describe(-60) == "killed by signal 60"
