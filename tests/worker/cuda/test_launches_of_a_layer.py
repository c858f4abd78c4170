"""How many kernels of our own a layer launches in a decode."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
import torch

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


DENSE = 6
"""Two norms, rotation and cache write, attention and its splits' fold, gate."""
MIXTURE = DENSE + 5
"""The choice of experts, the rows' order, the list of tiles, two products and a sum; no gate."""


@pytest.mark.parametrize("family", ["qwen3", "qwen3-moe"])
def test_a_layer_launches_no_more_than_it_needs(family: str) -> None:
    config, most = (read(family), MIXTURE) if family == "qwen3-moe" else (NORMED, DENSE)
    own = of_a_decode(config, 2) - of_a_decode(config, 1)
    assert own.total() == most
    assert own["attend"] == own["combine"] == 1
