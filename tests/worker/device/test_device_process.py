"""A worker's process whose device computes beside its main thread. The engine side is a
SessionServer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.protocol.common import TokenSampling
from penstock.protocol.from_worker import Fault, Result
from penstock.protocol.to_worker import NewSequence, Plan, Setup, SlotWork, Stop
from penstock_worker.steps.runner import StepRunner
from testing.preloaded import Preloaded
from tests.worker import test_process
from tests.worker.device.served import LARGE, POISON, gate
from tests.worker.test_process import Also
from tests.worker.worker_process import START, Engine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
setup = test_process.setup

SERVED = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from penstock_worker.loading import load as loading
from tests.worker.device.served import load
loading.load = load
{START}"""
HOT = TokenSampling(7, temperature=1.3)


@pytest.fixture
def engine(preloaded_process: Preloaded, tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(preloaded_process, tmp_path, start=SERVED)
    yield engine
    engine.close()


def plans(prompt: list[int], count: int) -> list[Plan]:
    """A prompt, and count - 1 tokens after it."""
    new = NewSequence(0, prompt, len(prompt), 0, HOT, [0, 1, 2, 3])
    made = [Plan(1, 0, [], [new], [SlotWork(0, 0, len(prompt))])]
    for step in range(2, count + 1):
        made.append(Plan(step, step - 1, [], [], [SlotWork(0, len(prompt) + step - 2, 1)]))
    return made


def let(folder: Path, steps: int) -> None:
    """The device may compute so many more."""
    with gate(folder).open("a") as opened:
        opened.write("x" * steps)


def written(folder: Path, expected: list[str]) -> None:
    """Waits for the journal to say it, and checks that it says no more."""
    until = time.monotonic() + 50
    journal: list[str] = []
    while len(journal) < len(expected) and time.monotonic() < until:
        time.sleep(0.01)
        if (folder / "journal").exists():
            journal = (folder / "journal").read_text().split("\n")[:-1]
    assert journal == expected


def test_two_plans_in_flight(
    engine: Engine, setup: Setup, tmp_path: Path, make_plain: Callable[..., StepRunner]
) -> None:
    """The second is queued while the first is computed, and each is told of as soon as it is done,
    before the next is computed; so on for as long as the engine core keeps two in flight; Stop
    doesn't wait for a step."""
    todo = plans([5, 6, 7], 7)
    plain = make_plain()
    truth = [plain.execute(plan).slots for plan in todo[:6]]
    engine.set_up(setup)
    for plan in todo[:2]:
        engine.send(plan)
    journal = ["queued 3", "queued 1"]
    written(tmp_path, journal)
    results = []
    for plan in [*todo[2:6], None, None]:
        let(tmp_path, 1)
        results.append(engine.hear(Result))
        journal.append("computed 1" if "computed 3" in journal else "computed 3")
        if plan is not None:
            engine.send(plan)
            journal.append("queued 1")
        written(tmp_path, journal)
    assert [result.slots for result in results] == truth
    assert [result.step for result in results] == [1, 2, 3, 4, 5, 6]
    for message in (*todo[6:], Stop()):
        engine.send(message)
    assert engine.exit_code()[0] == 0
    assert "computed" not in (tmp_path / "journal").read_text().split("\n")[len(journal) :]


def test_a_step_that_is_too_large_and_a_device_that_breaks(
    engine: Engine, setup: Setup, tmp_path: Path
) -> None:
    """The first ends the session, the second the process too; what is in flight goes with both."""
    engine.set_up(setup)
    large = NewSequence(1, [LARGE], 1, 0, HOT, [4])
    engine.send(plans([5, 6, 7], 1)[0])
    engine.send(Plan(2, 1, [], [large], [SlotWork(1, 0, 1)]))
    written(tmp_path, ["queued 3", "queued 1"])
    let(tmp_path, 1000)
    fault = engine.hear(Fault)
    assert (fault.final, fault.out_of_memory) == (False, True)
    assert "no room for 3 GiB" in fault.message
    engine.server.end(engine.session, "it reported a fault")
    engine.set_up(setup)
    engine.send(plans([5, 6, 7], 1)[0])
    assert engine.hear(Result).slots[0].token is not None
    engine.send(Plan(2, 1, [0], [], []))
    assert engine.hear(Result).slots == []
    poison = NewSequence(1, [POISON], 1, 0, HOT, [4])
    engine.send(Plan(3, 2, [], [poison], [SlotWork(1, 0, 1)]))
    engine.wait = lambda wanted, seconds=100: Engine.wait(engine, Also(wanted), seconds)
    fault = engine.hear(Fault)
    assert (fault.final, fault.out_of_memory) == (False, False)
    assert "illegal memory access" in fault.message
    code, errors = engine.exit_code()
    assert code not in (0, 78)
    assert "DeviceLost" in errors
