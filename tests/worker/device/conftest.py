"""A tiny model on a device that computes when it is let."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.batch.block_copies import BlockCopies
from penstock_worker.batch.slots import SlotBounds, Slots
from penstock_worker.forward.reference import ReferenceForward
from penstock_worker.grammar.grammars import SlotGrammars
from penstock_worker.metrics.phases import Phases, Unwatched
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.sampler import ReferenceSampler
from penstock_worker.sampler.memory import SamplerMemory
from penstock_worker.speculation.drafting import Drafting, Proposer
from penstock_worker.steps.generate import Generate
from penstock_worker.steps.runner import StepRunner
from tests.worker.checkpoints import TINY
from tests.worker.device.fake_device import FakeCopies, FakeDevice, FakeForward, FakeSampler
from tests.worker.runners import host_runner

BOUNDS = SlotBounds(slots=8, blocks=256, block_size=4, vocab=TINY.vocab_size, tokens=512)


@dataclass
class Machine:
    """A runner, and the device beneath it."""

    device: FakeDevice
    forward: FakeForward
    sampler: FakeSampler
    runner: StepRunner[Any]


@pytest.fixture
def model(tiny_models: dict[torch.dtype, DecoderModel]) -> DecoderModel:
    return tiny_models[torch.float32]


def host_forward(model: DecoderModel) -> ReferenceForward:
    shape = CacheShape(
        num_layers=TINY.num_layers,
        num_heads=TINY.num_heads,
        num_kv_heads=TINY.num_kv_heads,
        head_dim=TINY.head_dim,
        block_size=BOUNDS.block_size,
        dtype=torch.float32,
    )
    return ReferenceForward(model, ReferenceAttention(shape, BOUNDS.blocks))


@pytest.fixture
def make_machine(model: DecoderModel) -> Iterator[Callable[..., Machine]]:
    made: list[Machine] = []

    def make(
        grammars: SlotGrammars | None = None,
        phases: Phases | None = None,
        proposer: Callable[[Slots], Proposer] | None = None,
        **options: bool,
    ) -> Machine:
        device, host = FakeDevice(), host_forward(model)
        forward = FakeForward(device, host, BOUNDS.slots)
        sampler = FakeSampler(device)
        slots = Slots(BOUNDS)
        drafting = None if proposer is None else Drafting(slots, proposer(slots))
        features = grammars, SamplerMemory(sampler, slots), drafting
        kind = Generate(
            device,
            forward,
            sampler,
            slots,
            copies=FakeCopies(device, BlockCopies(host.kv_blocks(), 4)),
            newest=forward.newest,
            features=[each for each in features if each is not None],
            **options,
        )
        runner = StepRunner(device, kind, phases=phases or Unwatched())
        made.append(Machine(device, forward, sampler, runner))
        return made[-1]

    yield make
    for machine in made:
        machine.runner.close()


@pytest.fixture
def machine(make_machine: Callable[..., Machine]) -> Machine:
    return make_machine()


@pytest.fixture
def make_plain(model: DecoderModel) -> Iterator[Callable[..., StepRunner]]:
    """The runner that computes at once."""
    made: list[StepRunner] = []

    def make(grammars: SlotGrammars | None = None) -> StepRunner:
        made.append(plain_runner(model, grammars))
        return made[-1]

    yield make
    for runner in made:
        runner.close()


def plain_runner(model: DecoderModel, grammars: SlotGrammars | None = None) -> StepRunner:
    forward = host_forward(model)
    copies = BlockCopies(forward.kv_blocks(), 4)
    return host_runner(forward, ReferenceSampler(), Slots(BOUNDS), copies=copies, grammars=grammars)
