"""Pooling steps that are begun before those ahead of them are done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.model.pooling_config import PoolingConfig
from penstock.protocol.common import Pooling, TokenSampling
from penstock.protocol.to_worker import Copy, NewSequence, Plan, SlotWork
from penstock_worker.batch.slots import PlanError, SlotBounds, Slots
from penstock_worker.pooling.bodies import Hidden
from penstock_worker.pooling.pooler import Pool, Pooler
from penstock_worker.pooling.row_heads import token_vectors
from penstock_worker.steps.errors import DeviceLost, OutOfDeviceMemory
from penstock_worker.steps.runner import StepRunner
from tests.worker.device.fake_device import FakeDevice

SIZE = 3
EMBED = Pooling("embed", normalize=False)
TOKENS = Pooling("token_embed", normalize=False)


class Ways:
    """Transfers that copy when the device comes to it."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device

    def fetch(self, tensors: Sequence[Tensor]) -> Way:
        way = Way()
        self._device.queued.append(lambda: way.come([each.clone().numpy() for each in tensors]))
        return way


class Way:
    def __init__(self) -> None:
        self.copies: list[np.ndarray] | None = None

    def come(self, copies: list[np.ndarray]) -> None:
        self.copies = copies

    def arrays(self) -> list[np.ndarray]:
        assert self.copies is not None, "they were read before the device had copied them"
        return self.copies


class Body:
    """A token's vector is the token, times 1 to 3. obstacle: called with each step's tokens before
    it is queued, may raise."""

    device = torch.device("cpu")
    layers_done = 0

    def __init__(self) -> None:
        self.obstacle: Callable[[list[int]], None] = lambda tokens: None
        self.cancelled = False

    def hidden(self, works: list[SlotWork], slots: Slots) -> Hidden:
        inputs = [slots[work.slot].token_ids for work in works]
        self.obstacle([token for tokens in inputs for token in tokens])
        rows = [torch.tensor(tokens)[:, None] * torch.arange(1.0, SIZE + 1) for tokens in inputs]
        whole = torch.cat(rows)
        whole[whole == 13] = float("nan")
        return Hidden(torch.stack([each.mean(0) for each in rows]), whole)

    def cancel(self) -> None:
        self.cancelled = True


class Machine:
    def __init__(self) -> None:
        self.device, self.body = FakeDevice(), Body()
        config = PoolingConfig(mode="mean", normalize=False, size=SIZE)
        pooler = Pooler(
            self.body,
            None,
            config,
            Ways(self.device),  # type: ignore[arg-type]
            row_heads={"token_embed": partial(token_vectors, config, None)},
        )
        slots = Slots(SlotBounds(slots=4, blocks=12, block_size=9, vocab=99, tokens=8))
        self.runner = StepRunner(self.device, Pool(pooler, slots))
        self._step = 0

    def begin(self, *inputs: tuple[list[int], Pooling | None], released: int = 0, **more: Any):
        admitted = [
            NewSequence(slot, tokens, len(tokens), 0, TokenSampling(0), [slot], None, asked)
            for slot, (tokens, asked) in enumerate(inputs)
        ]
        works = [SlotWork(slot, 0, len(tokens)) for slot, (tokens, _) in enumerate(inputs)]
        self._step += 1
        plan = Plan(self._step, self._step - 1, list(range(released)), admitted, works, **more)
        return self.runner.begin(plan)


@pytest.fixture
def machine() -> Machine:
    return Machine()


def vectors(outcome: Any) -> list[Any]:
    assert outcome.error is None, outcome.error
    values = np.frombuffer(outcome.vectors.data, dtype="<f4")
    return values.reshape(outcome.vectors.shape).tolist()


def test_a_step_is_begun_while_another_is_pending(machine: Machine) -> None:
    first = machine.begin(([2, 4], EMBED), ([5], TOKENS))
    second = machine.begin(([7], EMBED), released=2)
    assert machine.device.waits == 0
    assert not first.done()
    late = second.result()
    assert first.done()
    assert [vectors(each) for each in first.result().slots] == [[3, 6, 9], [[5, 10, 15]]]
    assert [vectors(each) for each in late.slots] == [[7, 14, 21]]


def test_an_input_that_fails_does_so_alone(machine: Machine) -> None:
    def obstacle(tokens: list[int]) -> None:
        if 66 in tokens:
            raise ValueError("66 is not wanted")

    machine.body.obstacle = obstacle
    step = machine.begin(([2], EMBED), ([66], EMBED), ([13], TOKENS), ([1], None))
    good, bad, void, text = step.result().slots
    assert vectors(good) == [2, 4, 6]
    assert bad.error == "ValueError: 66 is not wanted"
    assert void.error == "ValueError: the model gave numbers that are not finite"
    assert text.error == "PlanError: slot 3 asks a pooling model for text"


def test_a_step_without_room_is_told_as_that(machine: Machine) -> None:
    def obstacle(tokens: list[int]) -> None:
        if len(tokens) > 3:
            raise torch.OutOfMemoryError("no room")

    machine.body.obstacle = obstacle
    begun = machine.begin(([2], EMBED))
    with pytest.raises(OutOfDeviceMemory, match="no room"):
        machine.begin(([2, 3], EMBED), ([4, 5], EMBED), released=1)
    assert machine.device.reclaimed == 1
    with pytest.raises(RuntimeError, match="step 1 was dropped"):
        begun.result()


def test_a_device_that_is_lost(machine: Machine) -> None:
    step = machine.begin(([2], EMBED))
    machine.device.broken = RuntimeError("an illegal address")
    with pytest.raises(DeviceLost, match="an illegal address"):
        step.result()


def test_a_session_ends_with_steps_in_flight(machine: Machine) -> None:
    machine.begin(([2], EMBED))
    machine.runner.reset()
    machine._step = 0
    assert vectors(machine.begin(([3], EMBED)).result().slots[0]) == [3, 6, 9]
    machine.runner.close()
    assert machine.body.cancelled


def test_blocks_to_copy_where_there_are_none(machine: Machine) -> None:
    with pytest.raises(PlanError, match="there are no blocks"):
        machine.begin(([2], EMBED), copies=[Copy("device", 0, 1)])
