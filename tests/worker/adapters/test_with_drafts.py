"""Sequences with adapters may have tokens drafted, by look-up or by another model: neither changes
what the other gives."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import numpy as np
import pytest

from penstock.adapters import read_adapter
from penstock.model.speculation import SpeculativeConfig
from penstock.prepare import load_manifest
from penstock.protocol.from_worker import AdapterReady
from penstock.protocol.to_worker import Setup
from penstock.protocol.worker_resources import LoadAdapter
from penstock_worker.adapters.slot_adapters import SlotAdapters
from penstock_worker.loading.load import load
from tests.adapter_folders import random_factors, write_peft
from tests.worker.adapters.rig import factors_of
from tests.worker.driver import GREEDY, Driver, Job
from tests.worker.speculation.assistant_folders import assisted
from tests.worker.speculation.draft_folders import SERVED, draft_setup, write_folder
from tests.worker.speculation.drafted_jobs import PENALTIES, SEEDED
from tests.worker.speculation.slow_heads import POSITIONS
from tests.worker.speculation.test_exactness import same


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    root = tmp_path_factory.mktemp("models")
    made = draft_setup(write_folder(root / "served"), write_folder(root / "draft", seed=1))
    return msgspec.structs.replace(
        made,
        max_loras=2,
        max_lora_rank=16,
        lora_whole_matrices=True,
        max_num_seqs=20,
        num_kv_blocks=120,
    )


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of adapters, by digest: of layers, embedding and head; and of rows with lengths of
    their own, with a whole embedding and a whole head."""
    vocab, hidden = SERVED.vocab_size, SERVED.hidden_size
    ends = {"model.embed_tokens": (hidden, vocab), "lm_head": (vocab, hidden)}
    low, layers = factors_of(SERVED, 4, 4), factors_of(SERVED, 16, 16)
    random = np.random.default_rng(1)
    whole = {
        f"{name}.weight": (0.2 * random.standard_normal((vocab, hidden))).astype(np.float32)
        for name in ends
    }
    lengths = {
        name: random.uniform(0.5, 2, len(up)).astype(np.float32) for name, (_, up) in layers.items()
    }
    folders = [
        write_peft(tmp_path_factory.mktemp("a"), low | random_factors(ends, 4, 5)),
        write_peft(tmp_path_factory.mktemp("b"), layers, whole=whole, magnitudes=lengths),
    ]
    return {read_adapter(folder)[0]: folder for folder in folders}


def jobs(adapters: dict[str, Path]) -> list[Job]:
    prompts = [[5, 6, 7] * 9, [at * at % 150 + 3 for at in range(50)]]
    return [
        Job(list(prompt), 30, sampling, adapter=adapter)
        for prompt in prompts
        for sampling in (GREEDY, SEEDED, PENALTIES)
        for adapter in (*adapters, "")
    ]


def run(setup: Setup, adapters: dict[str, Path], **options: int) -> list[Job]:
    loaded, answers = load(setup), SimpleQueue[Any]()
    try:
        for digest, folder in adapters.items():
            loaded.runner.feature(SlotAdapters).load(LoadAdapter(digest, str(folder)), answers.put)
            assert answers.get(timeout=30) == AdapterReady(digest)
        usual = {"num_blocks": 120, "slots": 20, "budget": 64}
        return Driver(loaded.runner, **(usual | options)).run(jobs(adapters))
    finally:
        loaded.runner.close()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_drafts_and_adapters(setup: Setup, adapters: dict[str, Path], backend: str) -> None:
    setup = msgspec.structs.replace(setup, attention_backend=backend)
    alone = run(msgspec.structs.replace(setup, speculation=None), adapters)
    # The same prompt goes on otherwise with another adapter.
    assert len({tuple(job.tokens) for job in alone[:3]}) == 3
    suffix = SpeculativeConfig(method="suffix", num_speculative_tokens=4)
    for speculation in (setup.speculation, suffix):
        drafting = msgspec.structs.replace(setup, speculation=speculation)
        found = run(drafting, adapters, draft=4, preempt_every=9)
        same(found, alone)
        assert sum(job.kept for job in found) > 0


def test_an_assistant_and_adapters(tmp_path: Path) -> None:
    """It reads what adapters have made of keys, values and hidden states."""
    model = assisted("the last one stores", tmp_path, counts=True)
    setup = msgspec.structs.replace(
        draft_setup(model.folder, model.folder),
        max_model_len=POSITIONS,
        num_kv_blocks=240,
        max_num_seqs=20,
        max_loras=2,
        max_lora_rank=16,
        speculation=SpeculativeConfig(**model.said, num_speculative_tokens=4),
    )
    config = load_manifest(model.folder).decoder
    factors = [factors_of(config, 8 << seed, seed, size=0.3) for seed in range(2)]
    folders = [write_peft(tmp_path / str(seed), each) for seed, each in enumerate(factors)]
    adapters = {read_adapter(folder)[0]: folder for folder in folders}
    alone = run(msgspec.structs.replace(setup, speculation=None), adapters, num_blocks=240)
    found = run(setup, adapters, num_blocks=240, draft=4, preempt_every=9)
    same(found, alone)
    ours, theirs, none = (job.logprobs for job in found[6:9])
    assert ours != theirs != none != ours
    assert sum(job.kept for job in found if job.adapter) > 0
