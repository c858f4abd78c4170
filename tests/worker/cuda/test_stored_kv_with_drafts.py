"""KV on disk beside a draft model on a GPU that is simulated: the draft model's part isn't kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from testing.in_process import System, Way
from tests.system.eager_drafts import eager
from tests.worker.cuda.small_models import GROUPED
from tests.worker.cuda.test_stored_kv_on_device import (
    FLOAT,
    GREEDY,
    WAY,
    blocks_read,
    device,
    finish,
    prompt,
    said,
)
from tests.worker.speculation.draft_folders import write_folder

__all__ = ["device", "eager"]
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
]


def served(folder: Path, way: Way) -> System:
    """One request, whose answer is long enough for a draft model that catches up first."""
    system = System(folder, FLOAT, way)
    for number, length, wanted in ((400, 5, 1), (1, 26, 12)):
        system.submit(number, prompt(length, number), wanted, GREEDY)
        system.run()
    finish(system)
    return system


@pytest.mark.usefixtures("device", "eager")
def test_drafts_behind_blocks_that_were_read(tmp_path: Path) -> None:
    """The draft model is the served one, so what it computes again behind blocks that were read is
    right: its drafts are kept. Answers are those without drafts and without a store."""
    folder = write_folder(tmp_path / "served", GROUPED)
    asked = {"method": "draft_model", "model": str(folder), "num_speculative_tokens": 2}
    way = replace(WAY, disk=str(tmp_path / "kv"), speculation=json.dumps(asked))
    true = served(folder, replace(WAY, prefix_caching=False))
    for found in (0, 6):
        system = served(folder, way)
        assert said(system) == said(true)
        assert blocks_read(system) == found
        assert system.heard[1, 0].kept > 0
