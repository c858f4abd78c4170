"""The models whose drafts are measured: a folder that is served, with a head of several layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from loadtest.speculation.drafting_model import LAYERS, circle, main
from penstock.prepare import load_manifest, prepare
from penstock_worker.loading.load import load
from penstock_worker.weights.heads import OwnHeadFiles
from tests.worker.speculation.test_head_loading import setup_for

pytestmark = pytest.mark.timeout(120)


def test_a_trained_model_has_a_head_that_loads(tmp_path: Path) -> None:
    assert main(["trained", str(tmp_path / "hub"), "--steps", "1"]) == 0
    folder = prepare(str(tmp_path / "hub"), cache_dir=tmp_path / "cache")
    assert load_manifest(folder).has_chat_template
    prepared = load_manifest(folder)
    assert OwnHeadFiles(prepared.weights, prepared.decoder).layers == LAYERS
    load(setup_for(folder, None)).runner.close()


def test_a_circle_goes_on_by_one_step() -> None:
    embeddings, step = circle(64, 16)
    assert torch.allclose(embeddings.roll(1, 0), embeddings @ step, atol=1e-4)
