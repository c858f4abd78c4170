"""A worker's `load` whose device computes beside the main thread, a step when the test lets it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from penstock.prepare import load_manifest
from penstock.protocol.from_worker import Ready
from penstock.protocol.to_worker import Setup
from penstock_worker.batch.block_copies import BlockCopies
from penstock_worker.batch.slots import SlotBounds, Slots
from penstock_worker.forward.interface import Batch, Forward
from penstock_worker.loading.loaded import Loaded
from penstock_worker.metrics.phases import Phases
from penstock_worker.sampler.memory import SamplerMemory
from penstock_worker.steps.generate import Generate
from penstock_worker.steps.runner import StepRunner
from tests.worker.checkpoints import TINY, load_model
from tests.worker.device.conftest import BOUNDS, host_forward
from tests.worker.device.fake_device import (
    FakeCopies,
    FakeDevice,
    FakeForward,
    FakeMark,
    FakeSampler,
)

LARGE, POISON = 298, 299
"""Tokens that take more memory than there is, and that break the device."""


class SteadyDevice(FakeDevice):
    """Computes what is queued, as it comes."""

    def __init__(self) -> None:
        super().__init__()
        self._turned = threading.Condition()
        threading.Thread(target=self._work, daemon=True).start()

    def run_to(self, mark: FakeMark) -> None:
        with self._turned:
            self._turned.wait_for(lambda: mark.at is not None or self.broken is not None)
        if mark.at is None:
            raise self.broken

    def run(self) -> None:
        self.run_to(self.mark())

    def _work(self) -> None:
        while self.broken is None:
            if not self.queued:
                time.sleep(0.001)
                continue
            try:
                self._next()
            except RuntimeError as error:
                self.broken = error
            with self._turned:
                self._turned.notify_all()


class ServedForward(FakeForward):
    """Writes down what is queued and what is computed: as many steps as the gate has bytes."""

    def __init__(self, device: FakeDevice, forward: Forward, folder: Path) -> None:
        super().__init__(device, forward, BOUNDS.slots)
        self.obstacle = _refuse_large
        self._journal = (folder / "journal").open("a", buffering=1)
        self._gate = gate(folder)
        self._passed = 0

    def logits(self, batch: Batch, rows: np.ndarray) -> object:
        print("queued", len(batch.tokens), file=self._journal)
        return super().logits(batch, rows)

    def _compute(self, batch: Batch, rows: np.ndarray) -> Tensor:
        while not self._gate.exists() or self._gate.stat().st_size <= self._passed:
            time.sleep(0.001)
        self._passed += 1
        if (batch.tokens == POISON).any():
            raise RuntimeError("an illegal memory access was encountered")
        print("computed", len(batch.tokens), file=self._journal)
        return super()._compute(batch, rows)


def gate(folder: Path) -> Path:
    return folder / "gate"


def _refuse_large(batch: Batch) -> None:
    if (batch.tokens == LARGE).any():
        raise torch.OutOfMemoryError("no room for 3 GiB")


def load(setup: Setup, phases: Phases, *more: object) -> Loaded:
    folder = Path(setup.model_dir)
    host = host_forward(load_model(TINY, load_manifest(folder).weights, torch.float32))
    device = SteadyDevice()
    forward = ServedForward(device, host, folder)
    slots = Slots(SlotBounds(8, BOUNDS.blocks, setup.block_size, TINY.vocab_size, 512))
    sampler = FakeSampler(device)
    kind = Generate(
        device,
        forward,
        sampler,
        slots,
        copies=FakeCopies(device, BlockCopies(host.kv_blocks(), 0)),
        newest=forward.newest,
        features=[SamplerMemory(sampler, slots)],
    )
    runner = StepRunner(device, kind, phases=phases)
    ready = Ready(num_kv_blocks=256, device="fake", fingerprint="0" * 64, load_seconds=0.0)
    return Loaded(setup, runner, ready, 0)
