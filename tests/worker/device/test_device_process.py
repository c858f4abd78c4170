"""A worker's process whose device computes beside its main thread. The engine side is a Hub."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.protocol.common import TokenSampling
from penstock.protocol.from_worker import Fault, FromWorker, Result
from penstock.protocol.to_worker import NewSequence, Plan, Setup, SlotWork, Stop
from penstock_worker.runner import Runner
from tests.worker import test_process
from tests.worker.device.served import LARGE, POISON, STEP_SECONDS
from tests.worker.test_process import START, Also, Engine

pytestmark = pytest.mark.timeout(60)
setup = test_process.setup

SERVED = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from penstock_worker import loading
from tests.worker.device.served import load
loading.load = load
{START}"""
HOT = TokenSampling(7, temperature=1.3)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path, start=SERVED)
    yield engine
    engine.close()


def plans(prompt: list[int], count: int) -> list[Plan]:
    """A prompt, and count - 1 tokens after it."""
    new = NewSequence(0, prompt, len(prompt), 0, HOT, [0, 1, 2, 3])
    made = [Plan(1, 0, [], [new], [SlotWork(0, 0, len(prompt))])]
    for step in range(2, count + 1):
        made.append(Plan(step, step - 1, [], [], [SlotWork(0, len(prompt) + step - 2, 1)]))
    return made


def heard(engine: Engine, kind: type[FromWorker]) -> tuple[FromWorker, float]:
    """The next message of that kind, and when it came."""
    return engine.hear(kind), time.monotonic()


def test_two_plans_in_flight(
    engine: Engine, setup: Setup, tmp_path: Path, make_plain: Callable[..., Runner]
) -> None:
    """The second is queued while the first is computed, and each is told of as soon as it is done;
    so on for as long as the engine core keeps two in flight; Stop waits for neither."""
    todo = plans([5, 6, 7], 8)
    plain = make_plain()
    truth = [plain.execute(plan).slots for plan in todo[:6]]
    engine.set_up(setup)
    for plan in todo[:2]:
        engine.send(plan)
    results, times = [], []
    for plan in [*todo[2:6], None, None]:
        result, when = heard(engine, Result)
        results.append(result)
        times.append(when)
        if plan is not None:
            engine.send(plan)
    assert [result.slots for result in results] == truth
    assert [result.step for result in results] == [1, 2, 3, 4, 5, 6]
    assert all(later - sooner > STEP_SECONDS / 2 for sooner, later in pairwise(times))
    journal = (tmp_path / "journal").read_text().split("\n")
    assert journal[:4] == ["queued 3", "queued 1", "computed 3", "queued 1"]
    for message in (*todo[6:], Stop()):
        engine.send(message)
    begun = time.monotonic()
    assert engine.exit_code()[0] == 0
    assert time.monotonic() - begun < 10


def test_a_step_that_is_too_large_and_a_device_that_breaks(engine: Engine, setup: Setup) -> None:
    """The first ends the session, the second the process too; what is in flight goes with both."""
    engine.set_up(setup)
    large = NewSequence(1, [LARGE], 1, 0, HOT, [4])
    engine.send(plans([5, 6, 7], 1)[0])
    engine.send(Plan(2, 1, [], [large], [SlotWork(1, 0, 1)]))
    fault = engine.hear(Fault)
    assert (fault.final, fault.out_of_memory) == (False, True)
    assert "no room for 3 GiB" in fault.message
    engine.hub.end(engine.session, "its fault was heard")
    engine.set_up(setup)
    engine.send(plans([5, 6, 7], 1)[0])
    assert engine.hear(Result).slots[0].token is not None
    engine.send(Plan(2, 1, [0], [], []))
    assert engine.hear(Result).slots == []
    poison = NewSequence(1, [POISON], 1, 0, HOT, [4])
    engine.send(Plan(3, 2, [], [poison], [SlotWork(1, 0, 1)]))
    engine.wait = lambda wanted, seconds=40: Engine.wait(engine, Also(wanted), seconds)
    fault = engine.hear(Fault)
    assert (fault.final, fault.out_of_memory) == (False, False)
    assert "illegal memory access" in fault.message
    code, errors = engine.exit_code()
    assert code not in (0, 78)
    assert "DeviceLost" in errors
