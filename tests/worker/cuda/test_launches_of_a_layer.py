"""How many kernels of our own a decode launches: each layer, and a step beside its graph."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
import torch

from penstock.model.config import ModelConfig
from penstock.protocol.common import TokenSampling
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from tests.worker.cuda.simulated.device import CapturedWork, Device
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


MOST_BESIDE_GRAPH = 5
"""Launches of a plain step that a CUDA graph doesn't have: of the sampler, mostly."""


@pytest.mark.parametrize("sampling", [GREEDY, TokenSampling(seed=1, temperature=1.0)])
def test_a_plain_step_is_a_replay_and_few_launches(sampling: TokenSampling) -> None:
    """Each launch takes the host several microseconds, in which a device may have nothing to do."""
    new = NewSequence(0, [1] * 5, 5, 0, sampling, [0, 1])
    with simulated(Device(1 << 30, computes=False, pace=1)) as device:
        made = Machine(device, NORMED, max_num_batched_tokens=8)
        made.begin(Plan(1, 0, [], [new], [SlotWork(0, 0, 5)])).result()
        replays, actual = 0, device.replay

        def replay(recording: CapturedWork) -> None:
            nonlocal replays
            replays += 1
            actual(recording)

        device.replay = replay  # type: ignore[method-assign]
        before = len(device.grids)
        for step in (2, 3):
            made.begin(Plan(step, step - 1, [], [], [SlotWork(0, step + 3, 1)])).result()
        made.runner.close()
    assert replays == 2
    assert 0 < len(device.grids) - before <= 2 * MOST_BESIDE_GRAPH
