"""Plans that don't fit are refused by name; failures stay with the slots that they concern."""

from __future__ import annotations

import msgspec
import pytest
import torch

from penstock.protocol.common import TokenSampling
from penstock.protocol.from_worker import Result
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from penstock_worker.batch.slots import PlanError
from penstock_worker.forward.interface import StepCancelled
from penstock_worker.forward.reference import ReferenceForward
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.steps.errors import DeviceLost
from penstock_worker.steps.runner import StepRunner, deal
from tests.worker.driver import GREEDY, make_runner

pytestmark = pytest.mark.timeout(240)

PROMPT = [5, 6, 7, 8, 9]


@pytest.fixture
def model(tiny_models: dict[torch.dtype, DecoderModel]) -> DecoderModel:
    return tiny_models[torch.float32]


@pytest.fixture
def runner(model: DecoderModel) -> StepRunner:
    """4 slots, 8 blocks of 4 tokens, at most 20 tokens; slot 0 has computed 5 and sampled one."""
    runner = make_runner(model, block_size=4, num_blocks=8, slots=4, max_tokens=20)
    first = runner.execute(Plan(1, 0, [], [admit(0, [0, 1])], [SlotWork(0, 0, 5)]))
    assert first.slots[0].token is not None
    return runner


def admit(
    slot: int, blocks: list[int], tokens: list[int] = PROMPT, sampling: TokenSampling = GREEDY
) -> NewSequence:
    return NewSequence(slot, tokens, len(tokens), 0, sampling, blocks)


def step(
    runner: StepRunner,
    work: list[SlotWork] = (),
    admitted: list[NewSequence] = (),
    released: list[int] = (),
    number: int = 2,
) -> Result:
    return runner.execute(Plan(number, number - 1, list(released), list(admitted), list(work)))


MISFITS = {
    "slot 2 is released but has": {"released": [2]},
    "to slot 0, which is in use": {"admitted": [admit(0, [2])]},
    r"slot 4 is not in \[0, 4\)": {"admitted": [admit(4, [2])]},
    r"slot 1: block 8 is not in \[0, 8\)": {"admitted": [admit(1, [8])]},
    "slot 1: block -1 is not in": {"admitted": [admit(1, [-1])]},
    "slot 1: a token id is not in": {"admitted": [admit(1, [2], [5, 301])]},
    "0 prompt tokens of 0": {"admitted": [admit(1, [2], [])]},
    "21 prompt tokens of 21; at most 20": {"admitted": [admit(1, [2], [1] * 21)]},
    "slot 3 has work but": {"work": [SlotWork(3, 0, 1)]},
    "slot 0 has work twice": {"work": [SlotWork(0, 5, 1), SlotWork(0, 6, 1)]},
    "starts at token 4, 5 are computed": {"work": [SlotWork(0, 4, 1)]},
    "starts at token 6, 5 are computed": {"work": [SlotWork(0, 6, 1)]},
    r"tokens \[5, 7\) of 6": {"work": [SlotWork(0, 5, 2)]},
    r"tokens \[5, 5\) of 6": {"work": [SlotWork(0, 5, 0)]},
    "block 9 is not in": {"work": [SlotWork(0, 5, 1, [9])]},
    "block 10 is not in": {"work": [SlotWork(0, 5, 1, states=[10])]},
    "slot 1: block 11 is not in": {
        "admitted": [msgspec.structs.replace(admit(1, [2]), states=[11])]
    },
    "5 tokens don't fit 1 blocks of 4": {"admitted": [admit(1, [2])], "work": [SlotWork(1, 0, 5)]},
}


@pytest.mark.parametrize("message", MISFITS)
def test_misfits_are_named(runner: StepRunner, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        step(runner, **MISFITS[message])


@pytest.mark.parametrize(("number", "follows"), [(3, 2), (2, 0), (1, 1)])
def test_steps_follow_one_another(runner: StepRunner, number: int, follows: int) -> None:
    with pytest.raises(PlanError, match="the last step here is 1"):
        runner.execute(Plan(number, follows, [], [], []))


def test_release_makes_room_and_reset_forgets(runner: StepRunner) -> None:
    result = step(runner, [SlotWork(0, 0, 5)], [admit(0, [4, 5])], released=[0])
    assert result.slots[0].error is None
    runner.reset()
    first = runner.execute(Plan(1, 0, [], [admit(0, [0, 1])], [SlotWork(0, 0, 5)]))
    assert first.slots == result.slots


def test_a_chunk_gives_no_token(runner: StepRunner) -> None:
    assert step(runner, [SlotWork(1, 0, 3)], [admit(1, [2, 3])]).slots[0].token is None
    assert step(runner, [SlotWork(1, 3, 2)], number=3).slots[0].token is not None


def test_a_prefix_found_in_the_cache(runner: StepRunner) -> None:
    """A new sequence may start past blocks that an equal one has filled."""
    whole = step(runner, [SlotWork(1, 0, 5)], [admit(1, [2, 3])])
    shared = step(runner, [SlotWork(2, 4, 1)], [admit(2, [0, 4])], number=3)
    assert shared.slots[0].token == whole.slots[0].token
    assert shared.slots[0].logprobs == whole.slots[0].logprobs


def test_poisoned_cache_fails_its_slot_only(runner: StepRunner) -> None:
    model = runner._kind._forward._model
    undisturbed = make_runner(model, block_size=4, num_blocks=8, slots=4, max_tokens=20)
    alone = undisturbed.execute(Plan(1, 0, [], [admit(1, [2, 3])], [SlotWork(1, 0, 5)]))
    for values in runner._kind._forward._attention.values:
        values[:, 0] = float("nan")  # Slot 0 of the cache: the first token of our sequence 0.
    result = step(runner, [SlotWork(0, 5, 1), SlotWork(1, 0, 5)], [admit(1, [2, 3])])
    assert "not finite" in result.slots[0].error
    assert result.slots[1] == alone.slots[0]
    again = step(runner, [SlotWork(0, 6, 1), SlotWork(1, 5, 1)], number=3)
    assert "not finite" in again.slots[0].error
    assert again.slots[1].token is not None


class FailsFor:
    """A model that runs out of memory whenever a certain token is in the batch."""

    def __init__(self, model: DecoderModel, token: int) -> None:
        self._model, self._token = model, token

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def hidden(self, tokens: torch.Tensor, *rest: object) -> torch.Tensor:
        if bool((tokens == self._token).any()):
            raise MemoryError("no room for the batch")
        return self._model.hidden(tokens, *rest)


def test_out_of_memory_fails_the_guilty_slot_only(
    model: DecoderModel, caplog: pytest.LogCaptureFixture
) -> None:
    healthy = make_runner(model, block_size=4, num_blocks=8, slots=4)
    runner = make_runner(FailsFor(model, 99), block_size=4, num_blocks=8, slots=4)
    admitted = [admit(0, [0, 1]), admit(1, [2, 3], [1, 99, 3]), admit(2, [4, 5])]
    work = [SlotWork(0, 0, 5), SlotWork(1, 0, 3), SlotWork(2, 0, 5)]
    plan = Plan(1, 0, [], admitted, work)
    result, true = runner.execute(plan), healthy.execute(plan)
    assert result.slots[1].error == "the worker has no memory left for this request"
    assert [result.slots[0], result.slots[2]] == [true.slots[0], true.slots[2]]
    assert any(record.exc_info for record in caplog.records)


class FailsSoOften:
    """Without memory, for the whole step and then for its works one by one."""

    def __init__(self, model: DecoderModel, times: int) -> None:
        self._model, self._left = model, times

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def hidden(self, *arguments: object) -> torch.Tensor:
        if self._left:
            self._left -= 1
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return self._model.hidden(*arguments)


def test_who_lacks_memory_that_others_have_freed_is_computed(model: DecoderModel) -> None:
    healthy = make_runner(model, block_size=4, num_blocks=8, slots=4)
    runner = make_runner(FailsSoOften(model, 2), block_size=4, num_blocks=8, slots=4)
    admitted = [admit(0, [0, 1]), admit(1, [2, 3], [1, 9, 3])]
    plan = Plan(1, 0, [], admitted, [SlotWork(0, 0, 5), SlotWork(1, 0, 3)])
    assert runner.execute(plan).slots == healthy.execute(plan).slots


def test_who_has_been_computed_before_is_not_guilty(
    runner: StepRunner, model: DecoderModel
) -> None:
    """Without memory for it the process is of no use any more."""
    runner._kind._forward._model = FailsSoOften(model, 2)
    with pytest.raises(DeviceLost, match="no memory left"):
        step(runner, [SlotWork(0, 5, 1)])


def test_closing_gives_up_the_step(model: DecoderModel) -> None:
    runner = make_runner(model, block_size=4, num_blocks=8, slots=4)
    forward = runner._kind._forward
    forward._model = CancelsItself(model, forward)
    with pytest.raises(StepCancelled):
        runner.execute(Plan(1, 0, [], [admit(0, [0, 1])], [SlotWork(0, 0, 5)]))
    assert runner.layers_done == 0


class CancelsItself:
    def __init__(self, model: DecoderModel, forward: ReferenceForward) -> None:
        self._model, self._forward = model, forward

    def hidden(self, *arguments: object) -> torch.Tensor:
        self._forward.cancel()
        return self._model.hidden(*arguments)


def test_layers_are_counted(runner: StepRunner, model: DecoderModel) -> None:
    assert runner.layers_done == model.config.num_layers


def test_dealing_is_fair_and_complete() -> None:
    works = [SlotWork(slot, 0, count) for slot, count in enumerate([100, 1, 1, 40, 60, 1])]
    shares = deal(works, 2)
    assert sorted(work.slot for share in shares for work in share) == list(range(6))
    assert max(sum(work.count for work in share) for share in shares) <= 103
    assert deal([SlotWork(slot, 0, 1) for slot in range(16)], 4) == [
        [SlotWork(slot, 0, 1) for slot in range(16)]
    ]
    assert deal([], 4) == []
