"""What goes wrong on a device stays with the slots that it concerns, or ends the session."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest
import torch

from penstock.protocol.common import TokenSampling
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from penstock_worker.forward.interface import Batch
from penstock_worker.parallel.errors import GroupLost
from penstock_worker.steps.errors import DeviceLost, OutOfDeviceMemory
from tests.worker.device.conftest import Machine
from tests.worker.device.test_device_runner import (
    COUNTED,
    HOT,
    TELLING,
    Make,
    MakePlain,
    decode,
    first,
)
from tests.worker.driver import GREEDY

pytestmark = pytest.mark.timeout(240)


def guilty(slot: int) -> Callable[[Batch], None]:
    """An obstacle for batches with that slot, known by its first block."""

    def check(batch: Batch) -> None:
        if 4 * slot in [table[0] for table in batch.tables]:
            raise ValueError("no kernel for that")

    return check


def test_what_cannot_be_queued_fails_the_guilty_slot_only(
    machine: Machine, make_plain: MakePlain
) -> None:
    plain = make_plain()
    plans = [first(COUNTED, HOT, COUNTED), decode(2, 0, 1, 2), decode(3, 0, 2)]
    truth = [plain.execute(plan) for plan in plans]
    one = machine.runner.begin(plans[0])
    machine.forward.obstacle = guilty(1)
    two = machine.runner.begin(plans[1])
    machine.forward.obstacle = lambda batch: None
    three = machine.runner.begin(plans[2])
    assert one.result().slots == truth[0].slots
    slots = two.result().slots
    assert slots[1].error == "ValueError: no kernel for that"
    assert [slots[0], slots[2]] == [truth[1].slots[0], truth[1].slots[2]]
    assert three.result().slots == truth[2].slots


def test_a_prompt_that_cannot_be_told_of_fails_its_slot_only(machine: Machine) -> None:
    machine.forward.spoiled.add(7)
    admitted = [
        NewSequence(0, [5, 6, 7, 8], 4, 0, TELLING, [0, 1], prompt_from=1),
        NewSequence(1, [5, 6, 9, 8], 4, 0, TELLING, [2, 3], prompt_from=1),
    ]
    works = [SlotWork(0, 0, 4), SlotWork(1, 0, 4)]
    slots = machine.runner.execute(Plan(1, 0, [], admitted, works)).slots
    assert "not finite" in slots[0].error
    assert len(slots[1].prompt_logprobs) == 3
    assert slots[1].token is not None


def telling() -> Plan:
    admitted = [
        NewSequence(0, [5, 6, 7, 8], 4, 0, TELLING, [0, 1], prompt_from=1),
        NewSequence(1, [5, 6, 9, 8], 4, 0, GREEDY, [2, 3]),
    ]
    return Plan(1, 0, [], admitted, [SlotWork(0, 0, 4), SlotWork(1, 0, 4)])


def test_a_prompt_that_cannot_be_told_of_is_found_when_its_step_is_collected(
    machine: Machine,
) -> None:
    machine.forward.spoiled.add(7)
    following = Plan(2, 1, [], [], [SlotWork(0, 4, 1), SlotWork(1, 4, 1)])
    one, two = machine.runner.begin(telling()), machine.runner.begin(following)
    assert machine.device.waits == 0
    for step in (one, two):
        slots = step.result().slots
        assert "not finite" in slots[0].error
        assert slots[1].token is not None


def test_scores_that_cannot_be_had_fail_their_slots_only(machine: Machine) -> None:
    one = machine.runner.begin(telling())
    machine.sampler.lost_scores = ValueError("an odd reply")
    slots = one.result().slots
    assert (slots[0].error, slots[1].error) == ("ValueError: an odd reply", None)
    assert slots[1].token is not None


def test_tokens_that_cannot_be_had_fail_their_step_and_what_follows(machine: Machine) -> None:
    one, two = machine.runner.begin(first(GREEDY, HOT)), machine.runner.begin(decode(2, 0))
    machine.sampler.lost = ValueError("an odd reply")
    assert [slot.error for slot in one.result().slots] == ["ValueError: an odd reply"] * 2
    assert two.result().slots[0].error == "ValueError: an odd reply"
    fresh = Plan(3, 2, [0], [NewSequence(0, [5], 1, 0, GREEDY, [0])], [SlotWork(0, 0, 1)])
    assert machine.runner.execute(fresh).slots[0].token is not None


def test_a_device_without_memory_drops_what_is_in_flight(machine: Machine) -> None:
    truth = machine.runner.execute(first(GREEDY, HOT)).slots
    two = machine.runner.begin(decode(2, 0, 1))

    def full(batch: Batch) -> None:
        raise torch.OutOfMemoryError("no room for 3 GiB")

    machine.forward.obstacle = full
    with pytest.raises(OutOfDeviceMemory, match="no room for 3 GiB"):
        machine.runner.begin(decode(3, 0, 1))
    assert machine.device.reclaimed == 1
    with pytest.raises(RuntimeError, match="step 2 was dropped"):
        two.result()
    machine.forward.obstacle = lambda batch: None
    machine.runner.reset()
    assert machine.runner.execute(first(GREEDY, HOT)).slots == truth


def test_a_broken_device_is_told_from_a_failed_slot(machine: Machine) -> None:
    one, two = machine.runner.begin(first(GREEDY)), machine.runner.begin(decode(2, 0))
    machine.device.broken = RuntimeError("an illegal memory access was encountered")
    assert one.done()  # Or nobody would ever hear of it.
    with pytest.raises(DeviceLost, match="illegal memory access"):
        one.result()
    with pytest.raises(RuntimeError, match="step 2 was dropped"):
        two.result()


def test_a_device_that_breaks_while_a_step_is_queued(machine: Machine) -> None:
    machine.runner.begin(first(GREEDY))
    machine.device.broken = RuntimeError("an illegal memory access was encountered")
    machine.forward.obstacle = guilty(0)
    with pytest.raises(DeviceLost, match="no kernel for that"):
        machine.runner.begin(decode(2, 0))


def test_ranks_together_try_nothing_again(make_machine: Make) -> None:
    machine = make_machine(together=True)
    one = machine.runner.begin(first(GREEDY, HOT))
    machine.forward.obstacle = guilty(1)
    with pytest.raises(ValueError, match="no kernel for that"):
        machine.runner.begin(decode(2, 0, 1))
    machine.sampler.lost = ValueError("an odd reply")
    with pytest.raises(ValueError, match="an odd reply"):
        one.result()


def test_a_failed_slot_leaves_the_draws_of_the_others_alone(
    machine: Machine, make_plain: MakePlain
) -> None:
    """A step that is tried again draws the same numbers, and counts no token twice."""
    sampling = [COUNTED, TokenSampling(4, temperature=1.2), COUNTED]
    plain = make_plain()
    plans = [first(*sampling), *(decode(step, 0, 2) for step in range(2, 9))]
    truth = [plain.execute(plan).slots for plan in plans]
    true = [[result[0].token, result[-1].token] for result in truth]
    steps = [machine.runner.begin(plans[0])]
    given = []
    for plan in plans[1:]:
        failing = iter([True])
        machine.sampler.obstacle = lambda failing=failing: _once(failing)
        steps.append(machine.runner.begin(plan))
        if plan.step % 3 == 0:
            given += [step.result() for step in steps]
            steps = []
    given += [step.result() for step in steps]
    assert [[result.slots[0].token, result.slots[-1].token] for result in given] == true


def _once(failing: Iterator[bool]) -> None:
    if next(failing, False):
        raise ValueError("only the first time")


SPOILED = 31


def spoiled_first() -> Plan:
    """Slot 0's logits are no numbers, slot 1's are."""
    plan = first(GREEDY, HOT)
    one, two = plan.admitted
    one = msgspec.structs.replace(one, tokens=[*one.tokens[:-1], SPOILED])
    return msgspec.structs.replace(plan, admitted=[one, two])


def test_ranks_queue_alike_whenever_they_hear_of_a_failure(make_machine: Make) -> None:
    early, late = make_machine(together=True), make_machine(together=True)
    for machine in (early, late):
        machine.forward.spoiled.add(SPOILED)
    plans = [spoiled_first(), decode(2, 0, 1)]
    at_once = [early.runner.execute(plan) for plan in plans]
    pending = [late.runner.begin(plan) for plan in plans]
    afterwards = [each.result() for each in pending]
    for ours, theirs in zip(early.forward.batches, late.forward.batches, strict=True):
        assert ours.counts.tolist() == theirs.counts.tolist()
    for ours, theirs in zip(at_once, afterwards, strict=True):
        assert ours.slots == theirs.slots
        assert "not finite" in ours.slots[0].error
        assert ours.slots[1].token is not None


def test_a_group_that_is_over_is_noticed_after_the_wait_and_the_device_is_not_asked(
    make_machine: Make,
) -> None:
    over = []

    def check() -> None:
        if over:
            raise GroupLost("the group is over")

    machine = make_machine(together=True, check=check)
    assert machine.runner.execute(first(GREEDY)).slots[0].token is not None
    step = machine.runner.begin(decode(2, 0))
    over.append(True)
    with pytest.raises(GroupLost):
        step.result()

    def stuck() -> bool:
        raise AssertionError("a device that stands still was waited for")

    machine.device.usable = stuck
    machine.forward.obstacle = lambda batch: check()
    with pytest.raises(GroupLost):
        machine.runner.begin(decode(3, 0))
