"""KV kept on disk of a model beside which another one, or a head, drafts: its part of a block isn't
kept, so that what drafts computes its own again, and whoever drafts finds the same blocks."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from testing.in_process import Numerics, System, Way
from tests.system.eager_drafts import eager
from tests.system.test_disk_kv import blocks_read
from tests.system.test_disk_kv_groups import begun, close, written
from tests.system.test_draft_heads import models
from tests.system.test_draft_models import PLAIN, SMALL, windowed
from tests.system.test_matrix import BLOCK, GREEDY, SAMPLED, Results, results
from tests.worker.speculation.draft_folders import write_folder

__all__ = ["eager", "models"]
pytestmark = [pytest.mark.timeout(300)]

WAY = Way(BLOCK, 64, num_blocks=256)


def long_prompt(vocab: int, length: int, seed: int) -> list[int]:
    own = random.Random(seed)
    return [own.randrange(vocab) for _ in range(length)]


def serve(system: System, vocab: int) -> Results:
    for number, length, sampling, n in ((300, 150, GREEDY, 1), (301, 120, SAMPLED, 3)):
        system.submit(number, long_prompt(vocab, length, number), 40, sampling, n)
        system.run()
    return {key: heard for key, heard in results(system).items() if key[0] != 400}


def drafts(system: System) -> tuple[int, int]:
    heard = [each for key, each in system.heard.items() if key[0] != 400]
    return sum(each.drafted for each in heard), sum(each.kept for each in heard)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.usefixtures("eager")
def test_who_drafts_and_who_does_not_finds_the_same_blocks(
    tmp_path: Path, backend: str, windows: bool
) -> None:
    config = windowed() if windows else PLAIN
    served = write_folder(tmp_path / "served", config)
    numerics, kept = Numerics(backend, "float32"), str(tmp_path / "kv")
    true = serve(begun(served, numerics, replace(WAY, prefix_caching=False)), PLAIN.vocab_size)
    itself = write_folder(tmp_path / "itself", config)
    other = write_folder(tmp_path / "other", SMALL, 1)
    for number, draft in enumerate((itself, itself, None, other)):
        asked = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": 3}
        way = replace(WAY, disk=kept, speculation=json.dumps(asked) if draft else "off")
        system = begun(served, numerics, way)
        assert serve(system, PLAIN.vocab_size) == true
        assert (blocks_read(system) > 8) == (number > 0)
        written(system)
        drafted, right = drafts(system)
        assert drafted > 40 or draft is None
        if draft == itself:
            assert right > 0.7 * drafted, "it has computed what was read, and isn't misled by it"
        close(system)
    assert len([path for path in (tmp_path / "kv").iterdir() if path.is_dir()]) == 1


@pytest.mark.parametrize(
    ("kind", "head"),
    [("Llama", "eagle3"), ("DeepseekV3", "mtp"), ("DeepseekV4", "mtp"), ("Qwen3Next", "mtp")],
)
@pytest.mark.usefixtures("eager")
def test_beside_a_head(models, tmp_path: Path, kind: str, head: str) -> None:  # type: ignore[no-untyped-def]
    model = models(kind, head)
    numerics, vocab = Numerics("cpu", "float32"), 64
    true = serve(begun(model.folder, numerics, replace(WAY, prefix_caching=False)), vocab)
    for number in range(2):
        way = replace(
            WAY,
            disk=str(tmp_path),
            speculation=json.dumps(model.said | {"num_speculative_tokens": 3}),
        )
        system = begun(model.folder, numerics, way)
        assert serve(system, vocab) == true
        assert (blocks_read(system) > 8) == (number > 0)
        written(system)
        assert drafts(system)[0] > 20
        close(system)
