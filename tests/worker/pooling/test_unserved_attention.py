"""What the reference kernels of encoders don't compute is refused, and never left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.model.config import EncoderConfig
from penstock.prepare import load_manifest, prepare
from penstock_kernels.reference.disentangled import Distances
from penstock_worker.attention.interface import (
    PLAIN_RULE,
    HeadNorms,
    Rotation,
    ScoreRule,
    StepAttention,
)
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.pooling.encoder.kernels import (
    FusedWithinInputs,
    ReferenceKernels,
    WithinInputs,
)
from penstock_worker.pooling.encoder.model import DisentangledAttention
from penstock_worker.weights.opening import DummyWeights
from testing.pooling_models import save
from tests.worker.pooling.test_cpu_pooling import KERNEL_SIZES

ROWS, HEADS, DIM = 3, 2, 4
FUSED = FusedWithinInputs([ROWS], None)
DISTANCES = Distances(torch.zeros(2 * ROWS - 1, dtype=torch.int64), None, None, 0.5)
DISENTANGLED = DisentangledAttention([ROWS], [DISTANCES], None)
PLAIN = WithinInputs([ROWS])


@pytest.mark.parametrize(
    ("attention", "rule"),
    [
        (FUSED, ScoreRule(scale=0.1)),
        (FUSED, ScoreRule(window=2)),
        (FUSED, ScoreRule(soft_cap=5.0)),
        (FUSED, ScoreRule(causal=True)),
        (FUSED, ScoreRule(sinks=torch.zeros(HEADS))),
        (DISENTANGLED, ScoreRule(window=2)),
        (PLAIN, ScoreRule(chunk=2)),
        (PLAIN, ScoreRule(causal=True)),
        (PLAIN, ScoreRule(sinks=torch.zeros(HEADS))),
    ],
)
def test_rules(attention: StepAttention, rule: ScoreRule) -> None:
    rows = torch.ones(ROWS, HEADS, DIM)
    attention.attend(0, rows, rows, rows, None, None, PLAIN_RULE)
    with pytest.raises(ValueError, match="no such rule"):
        attention.attend(0, rows, rows, rows, None, None, rule)


def test_rotations_and_norms_beside_distances() -> None:
    rows, one = torch.ones(ROWS, HEADS, DIM), torch.ones(DIM)
    table = torch.ones(ROWS, DIM // 2)
    rotation, norms = Rotation(table, table, torch.arange(ROWS)), HeadNorms(one, one, 1e-6)
    with pytest.raises(ValueError, match="no rotation, no norms"):
        DISENTANGLED.attend(0, rows, rows, rows, rotation)
    with pytest.raises(ValueError, match="no rotation, no norms"):
        DISENTANGLED.attend(0, rows, rows, rows, None, norms)


def _config(folder: Path) -> EncoderConfig:
    save(folder / "m", "BertModel", **KERNEL_SIZES)
    config = load_manifest(prepare(str(folder / "m"), cache_dir=folder)).config
    assert isinstance(config, EncoderConfig)
    return config


def test_tokens_that_see_those_before_them_only(tmp_path: Path) -> None:
    tokens = np.ones(ROWS, dtype=np.int64)
    kernels = ReferenceKernels(_config(tmp_path).layers)
    kernels.lay_out(tokens, tokens, tokens, [ROWS])
    with pytest.raises(ValueError, match="all tokens see each other"):
        kernels.lay_out(tokens, tokens, tokens, [ROWS], causal=True)


def test_token_types_that_nobody_gives(tmp_path: Path) -> None:
    model = DecoderModel(_config(tmp_path).layers, DummyWeights(torch.float32, None), positions=4)
    rows = torch.ones(ROWS, dtype=torch.int64)
    assert model.embedded(rows, rows, rows).shape == (ROWS, KERNEL_SIZES["hidden_size"])
    with pytest.raises(ValueError, match="has token types, and none are given"):
        model.embedded(rows, rows)
