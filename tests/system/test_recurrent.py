"""Models with recurrent layers: the same bits in every way of running, wherever checkpoints of
states lie, and while everything that is free is poisoned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from penstock.config.settings import PreemptionMode
from penstock.protocol.to_worker import Plan, ToWorker
from penstock_worker.forward import reference
from penstock_worker.forward.cpu import backend as cpu
from penstock_worker.loading import tensors
from penstock_worker.states.slot_states import SlotStates
from penstock_worker.steps.generate import Generate
from penstock_worker.weights.weights import Weights
from testing.in_process import Numerics, System, Way
from tests.system.eager_drafts import eager
from tests.system.test_matrix import BLOCK, OURS, Results, prompt, results, submit_crowd
from tests.worker.checkpoints import TINY
from tests.worker.models.manifests import write_manifest
from tests.worker.models.test_recurrent_models import read
from tests.worker.random_weights import RandomWeights

pytestmark = [pytest.mark.timeout(300)]
__all__ = ["eager"]

FLOAT = Numerics("reference", "float32")
WAYS: list[tuple[bool, int, PreemptionMode | None, int, int]] = [
    # (prefix cache, step budget, preemption, steps in flight, tokens between checkpoints)
    (True, 64, "recompute", 2, 32),
    (True, 16, "swap", 2, 16),
    (False, 64, "swap", 1, 48),
    (True, 2048, None, 2, 64),
]
HALVES = Numerics("reference", "bfloat16")
INT8 = Numerics("reference", "float32", "int8")
ON_CPU = Numerics("cpu", "float32")
CASES = [
    # The last: blocks of the pool, where sequences are to be preempted.
    ("lfm2", FLOAT, 40),
    pytest.param("qwen3-next", FLOAT, 40, marks=pytest.mark.long),
    pytest.param("lfm2", HALVES, 40, marks=pytest.mark.long),
    pytest.param("qwen3-next", HALVES, 40, marks=pytest.mark.long),
    pytest.param("granite-hybrid", INT8, 130, marks=pytest.mark.long),
    pytest.param("nemotron-h", FLOAT, 40, marks=pytest.mark.long),
    ("qwen3-next", ON_CPU, 40),
    pytest.param("lfm2-moe", Numerics("cpu", "bfloat16"), 40, marks=pytest.mark.slow),
    pytest.param("granite-hybrid", Numerics("cpu", "float32", "int8"), 130, marks=pytest.mark.slow),
    pytest.param("nemotron-h-moe", ON_CPU, 40, marks=pytest.mark.slow),
]


class Poisoned(System):
    """Fills blocks that nobody holds or can find, and the states of empty slots, with
    not-a-number before each step."""

    def _work(self, message: ToWorker) -> None:
        if isinstance(message, Plan) and self.loaded is not None:
            kind = self.loaded.runner._kind
            assert isinstance(kind, Generate)
            states = self.loaded.runner.features.find(SlotStates)
            assert states is not None
            self._poison(kind, states)
        super()._work(message)

    def _poison(self, kind: Generate, states: SlotStates) -> None:
        scheduling = self.core.state.scheduling
        cache = scheduling.cache
        assert cache is not None
        free = np.array([each == 0 for each in cache.pool.owner_classes()])
        findable = np.frombuffer(bytes(cache.findable), np.uint8) > 0
        for part in kind._forward.kv_blocks():
            part[: len(free)][free & ~findable] = 255  # Behind them lie the worker's own.
        for slot in set(range(scheduling.max_num_seqs)) - set(kind.slots):
            states._live[slot] = float("nan")


@pytest.fixture
def folder_of(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Path]:
    """Prepared folders with a manifest alone; weights are random."""

    def random_weights(
        files: object, config: object, dtype: torch.dtype = torch.float32, **_: object
    ) -> Weights:
        return RandomWeights(dtype)

    monkeypatch.setattr(reference, "open_weights", random_weights)
    monkeypatch.setattr(tensors, "check_tensors", lambda prepared: None)  # There are no files.
    monkeypatch.setattr(cpu, "open_weights", random_weights)

    def make(case: str) -> Path:
        path = tmp_path_factory.mktemp(case)
        config = msgspec.structs.replace(read(case), vocab_size=TINY.vocab_size)
        write_manifest(config, path, case)
        return path

    return make


def undisturbed(folder: Path, numerics: Numerics) -> Results:
    """Each request by itself, in one chunk, step by step, with no cache to find it in."""
    found: Results = {}
    for number, ours in OURS.items():
        way = Way(BLOCK, 2048, 128, prefix_caching=False, steps=1, checkpoints=256)
        system = System(folder, numerics, way)
        system.submit(number, *ours)
        system.run()
        found |= results(system)
    return found


@pytest.mark.parametrize(("case", "numerics", "blocks"), CASES, ids=str)
def test_no_bit_depends_on_the_way_of_running(
    folder_of: Callable[[str], Path], case: str, numerics: Numerics, blocks: int
) -> None:
    folder = folder_of(case)
    true = undisturbed(folder, numerics)
    assert all(len(set(tokens)) > 3 for tokens, _, _ in true.values() if len(tokens) > 10)
    preemptions = swaps = reused = 0
    for caching, budget, mode, steps, checkpoints in WAYS:
        way = Way(
            BLOCK,
            budget,
            num_blocks=1024 if mode is None else blocks,
            prefix_caching=caching,
            preemption=mode or "auto",
            host_kib=4096 if mode == "swap" else 0,
            steps=steps,
            checkpoints=checkpoints,
        )
        system = Poisoned(folder, numerics, way)
        submit_crowd(system)
        system.run()
        assert results(system) == true, way
        scheduling = system.core.state.scheduling
        assert scheduling.kv_groups.states is not None
        assert scheduling.cache is not None
        preemptions += scheduling.num_preemptions
        swaps += scheduling.cache.num_swapped_in
        reused += system.reused
    assert preemptions > 3
    assert swaps > 3
    assert reused > 300


@pytest.mark.parametrize("numerics", [FLOAT, ON_CPU], ids=str)
@pytest.mark.parametrize("shared", [15, 16, 17, 31, 32, 33, 64])
def test_a_prefix_of_any_length_is_found_up_to_its_last_checkpoint(
    folder_of: Callable[[str], Path], shared: int, numerics: Numerics
) -> None:
    way = Way(BLOCK, 2048, 64, checkpoints=16)
    first, second = prompt(80, 1), prompt(80, 1)[:shared] + prompt(90, 2)[60:80]
    cold = System(folder_of("lfm2"), numerics, way)
    cold.submit(2, second, *OURS[1][1:])
    cold.run()
    warm = Poisoned(folder_of("lfm2"), numerics, way)
    warm.submit(1, first, *OURS[1][1:])
    warm.run()
    warm.submit(2, second, *OURS[1][1:])
    warm.run()
    assert warm.heard[2, 0] == cold.heard[2, 0]
    assert warm.reused == shared // 16 * 16


DRAFTED = [
    ("lfm2", FLOAT),
    ("qwen3-next", ON_CPU),
    pytest.param("granite-hybrid", Numerics("cpu", "float32", "int8"), marks=pytest.mark.slow),
    pytest.param("nemotron-h", FLOAT, marks=pytest.mark.slow),
    pytest.param("mamba2", ON_CPU, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("case", "numerics"), DRAFTED, ids=str)
@pytest.mark.usefixtures("eager")
def test_wrong_drafts_leave_no_trace(
    folder_of: Callable[[str], Path], case: str, numerics: Numerics
) -> None:
    """States go back behind them: alone and crowded, where checkpoints lie between drafts, and
    where sequences are preempted and go on behind a checkpoint. What is predicted is the output,
    with a wrong token in it. How many drafts are kept, and so who is preempted, differs between
    processors: hence two pools that are too small."""
    folder = folder_of(case)
    true = undisturbed(folder, numerics)
    config = '{"method": "suffix", "num_speculative_tokens": 5}'
    blocks = 130 if case == "granite-hybrid" else 40
    preemptions = 0
    for number_of_blocks, checkpoints, crowd in [
        (1024, 16, True),
        (blocks, 32, True),
        (blocks * 3 // 5, 32, True),
        (1024, 64, False),
    ]:
        way = Way(
            BLOCK, 96, number_of_blocks, prefix_caching=True, checkpoints=checkpoints,
            speculation=config,
        )  # fmt: skip
        system = Poisoned(folder, numerics, way)
        if crowd:
            for number in range(200, 203):
                system.submit(number, prompt(60, number), 60, OURS[1][2])
        for number, ours in OURS.items():
            tokens = true[number, 0][0]
            system.submit(number, *ours, prediction=[*tokens[:7], 3, *tokens[7:]])
            if not crowd:
                system.run()
        system.run()
        assert results(system) == true
        assert 0 < system.kept < system.drafted
        preemptions += system.core.state.scheduling.num_preemptions
    assert preemptions
