"""How many kernels a layer launches, as the estimates have it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
import torch

from loadtest.gpu.estimate.model import QWEN3_8B, QWEN3_30B_A3B
from penstock.model.config import ModelConfig
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from tests.worker.cuda.simulated.device import Device
from tests.worker.cuda.simulated.machine import Machine
from tests.worker.cuda.simulated.torch_cuda import simulated
from tests.worker.cuda.small_models import NORMED
from tests.worker.driver import GREEDY
from tests.worker.models.family_cases import read

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
]

PLANS = (
    Plan(1, 0, [], [NewSequence(0, [1] * 5, 5, 0, GREEDY, [0, 1])], [SlotWork(0, 0, 5)]),
    Plan(2, 1, [], [], [SlotWork(0, 5, 1)]),
)


def of_a_decode(config: ModelConfig, layers: int) -> Counter[str]:
    """The last of the config's layers, so many times."""
    changes: dict[str, Any] = {"num_layers": layers, "layers": config.layers[-1:] * layers}
    deep = msgspec.structs.replace(config, **changes)
    with simulated(Device(1 << 30, computes=False, pace=1)) as device:
        made = Machine(device, deep, enforce_eager=True, max_num_batched_tokens=8)
        for plan in PLANS:
            before = len(device.grids)
            made.begin(plan).result()
        found = Counter(name for name, _ in device.grids[before:])
        made.runner.close()
    return found


@pytest.mark.parametrize("family", ["qwen3", "qwen3-moe"])
def test_a_layer_launches_as_many_as_are_estimated(family: str) -> None:
    config, shape = NORMED, QWEN3_8B
    if family == "qwen3-moe":
        config, shape = read(family), QWEN3_30B_A3B
    own = of_a_decode(config, 2) - of_a_decode(config, 1)
    assert own.total() == shape.triton_kernels
    assert own["attend"] == own["combine"] == 1
