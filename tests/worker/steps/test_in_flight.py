"""Steps are begun before those before them are collected, and told of when they are done."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import msgspec
import pytest

from penstock.protocol.from_worker import Result
from penstock.protocol.to_worker import Plan, Stop
from penstock_worker.batch.block_copies import NO_COPIES
from penstock_worker.batch.slots import SlotBounds, Slots
from penstock_worker.device.queue import HostQueue
from penstock_worker.engine_session import Heard
from penstock_worker.left_over import Activity
from penstock_worker.steps import in_flight as module
from penstock_worker.steps.in_flight import DEPTH, LONGEST_PAUSE, StepsInFlight
from penstock_worker.steps.kinds import StepKind
from penstock_worker.steps.runner import BegunStep, StepRunner


class Session:
    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        self.activity = Activity()


class Step:
    """A PendingStep that is done when the test says so. looks: how often it was asked."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.looks = 0
        self.computed = threading.Event()

    def done(self) -> bool:
        self.looks += 1
        return self.computed.is_set()

    def result(self) -> Result:
        assert self.computed.wait(60)
        return Result(self.number, [], float(self.number))


class Device:
    """A runner that begins Steps."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def begin(self, plan: Plan, disturbed: Callable[[], bool]) -> Step:
        self.disturbed = disturbed
        self.steps.append(Step(plan.step))
        return self.steps[-1]


class Watching(StepKind[None]):
    """Computes at once, and looks at what is said of it meanwhile."""

    def __init__(self, activity: Activity) -> None:
        slots = Slots(SlotBounds(slots=1, blocks=1, block_size=1, vocab=1, tokens=1))
        super().__init__(SimpleNamespace(layers_done=0), slots, NO_COPIES)
        self.activity = activity
        self.seen: list[int | None] = []

    def prepare(self, plan: Plan) -> None:
        super().prepare(plan)
        self.seen.append(self.activity.step)
        time.sleep(0.01)

    def launch(self, *ignored: object) -> None:
        raise AssertionError("there is no work")

    settle = launch


class Immediate:
    """A StepRunner of a host, whose results bear their step's number."""

    def __init__(self, activity: Activity) -> None:
        self.kind = Watching(activity)
        self._runner = StepRunner(HostQueue(), self.kind)

    def begin(self, plan: Plan, disturbed: Callable[[], bool]) -> Numbered:
        return Numbered(self._runner.begin(plan))


class Numbered:
    def __init__(self, step: BegunStep[None]) -> None:
        self._step = step
        self.done = step.done

    def result(self) -> Result:
        return msgspec.structs.replace(self._step.result(), sampled=self._step.plan.step)


def plan(step: int) -> Plan:
    return Plan(step, step - 1, [], [], [])


def after(seconds: float, call: Callable[[], object]) -> None:
    threading.Timer(seconds, call).start()


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def told() -> list[tuple[int, int]]:
    return []


@pytest.fixture
def steps(session: Session, told: list[tuple[int, int]]) -> StepsInFlight:
    return StepsInFlight(session, lambda number, _, result: told.append((number, result.step)))


def test_a_plan_is_begun_while_the_one_before_it_is_computed(
    session: Session, steps: StepsInFlight, told: list[tuple[int, int]]
) -> None:
    device = Device()
    for step in range(1, DEPTH + 1):
        steps.begin(7, plan(step), device)
    assert [step.number for step in device.steps] == [1, 2]
    assert told == []
    assert (session.activity.session, session.activity.step) == (7, 1)
    after(0.1, device.steps[0].computed.set)
    steps.begin(7, plan(3), device)  # There is room once the first is done.
    assert told == [(7, 1)]
    assert len(steps) == DEPTH
    assert session.activity.step == 2


def test_a_result_is_told_though_nothing_more_comes(
    session: Session,
    steps: StepsInFlight,
    told: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device()
    steps.begin(7, plan(1), device)
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(module, "time", clock)

    class Inbox:
        """Nothing comes, and waiting for it takes no time but the clock's."""

        def get(self, block: bool, timeout: float) -> Heard:
            assert block
            clock.now += timeout
            if clock.now >= 1000.5:
                device.steps[0].computed.set()
            raise queue.Empty

    monkeypatch.setattr(session, "inbox", Inbox())
    assert steps.hear() is None
    assert 0.5 <= clock.now - 1000 <= 0.5 + LONGEST_PAUSE
    assert device.steps[0].looks < 0.5 / LONGEST_PAUSE + 100
    assert steps.session == 7
    steps.collect()
    assert told == [(7, 1)]
    assert session.activity.step is None


def test_what_comes_is_heard_before_the_step_is_done(
    session: Session, steps: StepsInFlight
) -> None:
    steps.begin(7, plan(1), Device())
    heard = Heard(7, plan(2))
    after(0.05, lambda: session.inbox.put(heard))
    assert steps.hear() is heard


def test_messages_are_heard_though_there_is_no_room(session: Session, steps: StepsInFlight) -> None:
    device = Device()
    for step in range(1, DEPTH + 1):
        steps.begin(7, plan(step), device)
    heard = Heard(7, Stop())
    session.inbox.put(heard)
    assert steps.hear() is heard
    assert steps.hear() is None  # Then the oldest is waited for, without looking again and again.
    assert device.steps[0].looks < 10


def test_a_message_disturbs_the_step_that_is_computed(
    session: Session, steps: StepsInFlight
) -> None:
    device = Device()
    steps.begin(0, plan(1), device)
    assert not device.disturbed()
    session.inbox.put(Heard(0, Stop()))
    assert device.disturbed()


def test_steps_of_a_session_that_is_over_are_not_told(
    session: Session, steps: StepsInFlight, told: list[tuple[int, int]]
) -> None:
    steps.begin(7, plan(1), Device())
    steps.clear()
    assert session.activity.step is None
    heard = Heard(8, plan(1))
    session.inbox.put(heard)
    assert steps.hear() is heard
    assert told == []


def test_who_computes_at_once_is_told_of_at_once(session: Session) -> None:
    results: list[Result] = []
    steps = StepsInFlight(session, lambda number, _, result: results.append(result))
    runner = Immediate(session.activity)
    for step in (1, 2, 3):
        steps.begin(7, plan(step), runner)
        assert len(steps) == 0
    assert runner.kind.seen == [1, 2, 3]
    assert [(result.step, result.sampled) for result in results] == [(1, 1), (2, 2), (3, 3)]
    assert all(result.compute_seconds >= 0.01 for result in results)
    assert session.activity.step is None


def test_what_was_forgotten_is_waited_for(session: Session, steps: StepsInFlight) -> None:
    """A device whose queue stands still would else get one session's steps after another's."""
    device = Device()
    for step in range(1, DEPTH + 1):
        steps.begin(1, plan(step), device)
    steps.clear()
    steps.clear()  # As at the session's end, and when the next one begins.
    device.steps[0].computed.set()
    assert steps.await_forgotten(0.01) == DEPTH
    device.steps[-1].computed.set()
    assert steps.await_forgotten(60.0) is None
    assert steps.await_forgotten(0.0) is None
