"""When a step whose session is over counts as one that hangs."""

from __future__ import annotations

from penstock_worker.left_over import Activity, LeftOverStep


def in_a_step() -> tuple[Activity, LeftOverStep]:
    activity = Activity(session=3, step=7)
    return activity, LeftOverStep(activity)


def test_only_a_step_whose_session_is_over() -> None:
    activity, step = in_a_step()
    assert step.stands_for(1000.0) == 0
    activity.step = None
    step.session_ended(1000.0)
    activity.step = 8
    assert step.stands_for(2000.0) == 0


def test_it_counts_from_the_last_layer() -> None:
    activity, step = in_a_step()
    step.session_ended(10.0)
    assert step.stands_for(15.0) == 5
    activity.layers_done = lambda: 1
    assert step.stands_for(16.0) == 0
    assert step.stands_for(20.0) == 4


def test_it_is_over_when_the_step_is() -> None:
    activity, step = in_a_step()
    step.session_ended(10.0)
    activity.step = None
    assert step.stands_for(100.0) == 0
    activity.session, activity.step = 4, 1
    assert step.stands_for(200.0) == 0
    step.session_ended(300.0)
    assert step.stands_for(301.0) == 1


def test_sessions_that_come_and_go_meanwhile_change_nothing() -> None:
    """An engine core that starts again, or another rank that can't form a group: the process would
    never end otherwise."""
    _, step = in_a_step()
    for now in (10.0, 40.0, 90.0):
        step.session_ended(now)
        assert step.stands_for(now + 1) == now - 9
