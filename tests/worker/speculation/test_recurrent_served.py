"""A draft model beside one with recurrent layers, whose states go back behind its wrong drafts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.model.attention_spec import AttentionSpec
from penstock.model.kv_layout import state_of
from penstock.model.speculation import SpeculativeConfig
from penstock.prepare import load_manifest
from penstock.prepare.folder import MANIFEST, TOKENIZER
from penstock.protocol.to_worker import SlotWork
from penstock_worker.loading.load import load
from penstock_worker.speculation.draft_model import DraftModel
from tests.worker.device.plans import Ahead
from tests.worker.driver import GREEDY, Job
from tests.worker.speculation.draft_folders import draft_setup
from tests.worker.speculation.drafted_jobs import PENALTIES, SEEDED
from tests.worker.speculation.head_folders import prepared_folder, served_model
from tests.worker.speculation.test_exactness import same

pytestmark = pytest.mark.timeout(300)
BLOCKS, SIZE = 200, 16


def counting(kind: str, folder: Path, **changes: Any) -> Path:
    """A model that mostly says the next id, with the tokenizer of all of these."""
    served_model(kind, folder / "hub", drafts=False, counts=True)
    prepared = prepared_folder(folder / "hub", folder / "prepared")
    manifest = load_manifest(prepared)
    config = msgspec.structs.replace(manifest.decoder, **changes)
    manifest = msgspec.structs.replace(manifest, config=config, contents={TOKENIZER: "the same"})
    (prepared / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    return prepared


def outputs(folder: Path, backend: str, said: SpeculativeConfig | None, draft: int) -> list[Job]:
    setup = msgspec.structs.replace(
        draft_setup(folder, folder, backend=backend),
        block_size=SIZE,
        num_kv_blocks=BLOCKS,
        max_num_seqs=4,
        max_num_batched_tokens=24,
        max_model_len=80,
        state_checkpoint_tokens=SIZE,
        speculation=said,
    )
    loaded = load(setup)
    states = state_of(loaded.ready.kv_groups)
    assert states is not None
    jobs = [
        Job([at + 40 * number for at in range(5 + 4 * number)], 20, sampling, number)
        for number, sampling in enumerate([GREEDY, SEEDED, PENALTIES])
    ]
    sizes = {"block_size": SIZE, "num_blocks": BLOCKS, "slots": 4, "budget": 24}
    try:
        return Ahead(loaded.runner, **sizes, draft=draft, preempt_every=9, states=states).run(jobs)
    finally:
        loaded.runner.close()


@pytest.fixture
def _wrong_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    propose = DraftModel.propose

    def partly_wrong(model: DraftModel, scheduled: list[SlotWork]) -> list[list[int]]:
        return [
            [8 if (work.start + at) % 4 == 3 else token for at, token in enumerate(drafts)]
            for work, drafts in zip(scheduled, propose(model, scheduled), strict=True)
        ]

    monkeypatch.setattr(DraftModel, "propose", partly_wrong)


@pytest.mark.usefixtures("_wrong_now_and_then")
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_outputs_are_those_without_drafts(backend: str, tmp_path: Path) -> None:
    """The draft model has two KV groups, in blocks behind those of the states' own."""
    for name in ("served", "draft"):
        (tmp_path / name).mkdir()
    served = counting("Qwen3Next", tmp_path / "served")
    (layer,) = load_manifest(counting("Llama", tmp_path / "draft")).decoder.layers
    window = msgspec.structs.replace(layer, attention=AttentionSpec(window=37))
    (tmp_path / "windows").mkdir()
    draft = counting("Llama", tmp_path / "windows", layers=(window, layer, layer, layer))
    said = SpeculativeConfig(method="draft_model", model=str(draft), num_speculative_tokens=3)
    true = outputs(served, backend, None, 0)
    found = outputs(served, backend, said, 3)
    same(found, true)
    kept, drafted = (sum(getattr(job, what) for job in found) for what in ("kept", "drafted"))
    assert 10 < kept < drafted
