"""Models with sliding windows, whose layers are in several KV groups: the same bits in every way of
running, while blocks behind the window are given to others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from penstock.config.settings import PreemptionMode
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.prepared_model import GenerationDefaults, PreparedModel
from penstock.prepare.folder import FORMAT_VERSION, MANIFEST
from testing.in_process import Numerics, System, Way
from testing.model_configs import varied
from tests.system.test_matrix import BLOCK, GREEDY, OURS, Results, prompt, results, submit_crowd
from tests.worker.checkpoints import TINY, tiny_files

pytestmark = [pytest.mark.timeout(300)]


def config_of(*attentions: AttentionSpec) -> ModelConfig:
    """A layer for each of these."""
    config = varied(TINY, head_dim=32, num_layers=len(attentions))
    layer = config.layers[0]
    layers = tuple(msgspec.structs.replace(layer, attention=each) for each in attentions)
    return msgspec.structs.replace(config, layers=layers)


FULL, WINDOW, CHUNK = AttentionSpec(), AttentionSpec(window=37), AttentionSpec(chunk=48)
MODELS = {
    "mixed": config_of(WINDOW, FULL, WINDOW),
    "windows": config_of(WINDOW, WINDOW),
    "chunks": config_of(CHUNK, WINDOW, FULL),
}
GROUPS = {"mixed": 3, "windows": 1, "chunks": 3}


@dataclass(frozen=True)
class Case:
    model: str
    numerics: Numerics
    blocks: int
    """Blocks of the pool, where sequences are to be preempted."""

    def __str__(self) -> str:
        return f"{self.model}-{self.numerics.backend}-{self.numerics.kv_cache}"


CASES = [
    Case("mixed", Numerics("cpu", "float32"), 36),
    Case("windows", Numerics("cpu", "float32", "int8"), 12),
    Case("chunks", Numerics("cpu", "bfloat16"), 36),
    pytest.param(Case("mixed", Numerics("reference", "float32"), 36), marks=pytest.mark.slow),
]
WAYS: list[tuple[bool, int, PreemptionMode | None, int]] = [
    (True, 64, "recompute", 2),
    (True, 16, "swap", 2),
    (False, 64, "swap", 1),
    (True, 2048, None, 2),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Prepared folders with a manifest alone."""

    def make(name: str) -> Path:
        path = tmp_path_factory.mktemp(name)
        manifest = PreparedModel(
            format_version=FORMAT_VERSION,
            name=name,
            source=name,
            config=MODELS[name],
            generation=GenerationDefaults(),
            weights=tiny_files(
                path, varied(TINY, head_dim=32, num_layers=len(MODELS[name].layers))
            ),
            digest="0",
            has_chat_template=False,
        )
        (path / MANIFEST).write_bytes(msgspec.json.encode(manifest))
        return path

    return make


def undisturbed(folder: Path, numerics: Numerics) -> Results:
    """Each request by itself, in one chunk, step by step, with no cache to find it in."""
    found: Results = {}
    for number, ours in OURS.items():
        system = System(folder, numerics, Way(BLOCK, 2048, 128, prefix_caching=False, steps=1))
        system.submit(number, *ours)
        system.run()
        found |= results(system)
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_bit_depends_on_the_way_of_running(folders: Callable[[str], Path], case: Case) -> None:
    folder = folders(case.model)
    true = undisturbed(folder, case.numerics)
    preemptions = swaps = reused = 0
    for caching, budget, mode, steps in WAYS:
        way = Way(
            BLOCK,
            budget,
            num_blocks=512 if mode is None else case.blocks,
            prefix_caching=caching,
            preemption=mode or "auto",
            host_kib=4096 if mode == "swap" else 0,
            steps=steps,
        )
        system = System(folder, case.numerics, way)
        submit_crowd(system)
        system.run()
        assert results(system) == true, way
        scheduling = system.core.state.scheduling
        assert len(scheduling.kv_groups) == GROUPS[case.model]
        assert scheduling.cache is not None
        preemptions += scheduling.num_preemptions
        swaps += scheduling.cache.num_swapped_in
        reused += system.reused
    assert preemptions > 3
    assert swaps > 3
    assert reused > 300


def test_a_long_sequence_holds_its_window(folders: Callable[[str], Path]) -> None:
    """220 tokens in a pool of 4 blocks of 16: with a window of 37 in all layers that suffices."""
    folder, numerics = folders("windows"), CASES[0].numerics
    found = []
    for blocks in (4, 64):
        system = System(folder, numerics, Way(BLOCK, 48, blocks))
        system.submit(1, prompt(160, 1), 60, GREEDY)
        system.run()
        found.append(system.heard[1, 0])
    assert found[0] == found[1]
