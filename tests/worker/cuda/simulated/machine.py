"""A worker's runner on the simulated device, and a plan's begin that may not wait."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import torch

from penstock.model.config import ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock.protocol.common import Grammar
from penstock.protocol.to_worker import Plan, Setup
from penstock_worker.batch.slots import SlotBounds, Slots
from penstock_worker.device.queue import queue_of
from penstock_worker.forward.backends import choose
from penstock_worker.forward.interface import DeviceRecipe
from penstock_worker.grammar.grammars import SlotGrammars
from penstock_worker.loading.device import DeviceParts, load_on_device
from penstock_worker.metrics.phases import Phases
from penstock_worker.sampler.memory import SamplerMemory
from penstock_worker.steps.generate import Generate
from penstock_worker.steps.runner import BegunStep, StepRunner
from tests.worker.cpu_model import CPUModel
from tests.worker.cuda.simulated.device import Device, Misuse
from tests.worker.grammar.grammar_tools import EVEN, compile_now

NO_FILES = WeightFiles(format="safetensors", files=(), dtype="bfloat16")


def small_setup(
    config: ModelConfig, files: WeightFiles | None, **changes: Any
) -> tuple[CPUModel, Setup]:
    """files: None: weights are made up.  changes: of Setup."""
    model = CPUModel(config, files or NO_FILES, changes.pop("dtype", "auto"), backend="triton")
    small = {
        "block_size": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 40,
        "max_model_len": 640,
        "gpu_memory_utilization": 0.9,
        "num_kv_blocks": 400,
        "load_format": "dummy" if files is None else "auto",
    }
    return model, msgspec.structs.replace(model.setup(), **(small | changes))


class Machine:
    """files, changes: see small_setup.  Its one grammar, number 1, allows even ids."""

    def __init__(
        self,
        device: Device,
        config: ModelConfig,
        files: WeightFiles | None = None,
        **changes: Any,
    ) -> None:
        model, self.setup = small_setup(config, files, **changes)
        self.device = device
        recipe = choose(model.prepared(), self.setup, 1)
        if not isinstance(recipe, DeviceRecipe):
            raise TypeError(f"{recipe.backend} isn't for a device")
        with torch.inference_mode():
            self.parts: DeviceParts = load_on_device(recipe, self.setup, config.vocab_size)
        setup = self.setup
        self.grammars = SlotGrammars(Even(config.vocab_size), budget=20.0)
        compile_now(self.grammars, 1, EVEN)
        bounds = SlotBounds(
            setup.max_num_seqs,
            self.parts.blocks,
            setup.block_size,
            config.vocab_size,
            setup.max_model_len,
        )
        queue, slots = queue_of(recipe.device), Slots(bounds)
        features = recipe.states, self.grammars, SamplerMemory(self.parts.sampler, slots)
        kind = Generate(
            queue,
            self.parts.forward,
            self.parts.sampler,
            slots,
            copies=self.parts.copies,
            newest=self.parts.forward.newest,
            features=[each for each in features if each is not None],
        )
        self.runner = StepRunner(queue, kind, phases=Phases())
        self.waited: set[str] = set()

    def begin(self, plan: Plan) -> BegunStep:
        """Fails where it waits for anything but what is stated."""
        before = len(self.device.waits)
        step = self.runner.begin(plan)
        waits = set(self.device.waits[before:])
        if waits - COLLECTING:
            raise Misuse(f"begin waited in {waits - COLLECTING}")
        self.waited |= waits
        return step


COLLECTING = {"_CUDAMark.wait", "_CUDAFetched.arrays"}
"""Results of steps before, for bad words and grammars; prompts' log-probabilities."""


class Even:
    """A Compile whose matchers allow even ids, always."""

    def __init__(self, vocab: int) -> None:
        self._allowed = np.arange(vocab) % 2 == 0

    def __call__(self, definition: Grammar) -> Even:
        return self

    def matcher(self) -> Even:
        return self

    def advance(self, tokens: list[int]) -> None:
        pass

    def forced(self) -> list[int]:
        return []

    def allowed(self) -> np.ndarray:
        return self._allowed
