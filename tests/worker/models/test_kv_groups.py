"""Models whose layers are in several KV groups: a block is read only while some layer sees it, and
the bits are those of one group."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.model.config import ModelConfig
from penstock.model.kv_layout import KVLayout, kv_layout, layers_that_read, one_group
from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.forward.cpu import backend as cpu
from penstock_worker.forward.interface import Forward
from penstock_worker.forward.reference import ReferenceForward
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.weights.opening import DummyWeights
from tests.worker.models.case_sizes import SIZES
from tests.worker.models.family_cases import CASES, read
from tests.worker.models.forgetful import Course, check
from tests.worker.models.test_parity_families import make_theirs
from tests.worker.models.test_parity_on_cpu import cpu_model

BLOCK, POSITIONS, BLOCKS = 16, 256, 96
COURSE = Course(
    np.random.default_rng(4).integers(0, SIZES["vocab_size"], 100),
    (1, 40, 15, 33, 1, 1, 9),
    BLOCK,
    BLOCKS,
)


def reference(config: ModelConfig, layout: KVLayout | None) -> ReferenceForward:
    dtype = torch.float32
    shape = CacheShape.of(config, BLOCK, dtype, layout)
    model = DecoderModel(config, DummyWeights(dtype, torch.device("cpu")), POSITIONS)
    return ReferenceForward(model, ReferenceAttention(shape, BLOCKS))


@pytest.mark.parametrize(
    "case",
    [
        "mistral-window",
        "gemma2",
        "gemma3-stretched",
        "cohere2",
        "gemma4-alike",
        "gemma4-shared-kv",
        "gemma3n",
        "deepseek-v4",
        "deepseek-v4-unlike-blocks",
    ],
)
def test_the_reference_reads_no_block_behind_a_window(case: str) -> None:
    config = read(case)
    layout = kv_layout(config, POSITIONS)
    assert any(group.forgets for group in layout.groups)
    check(reference(config, None), lambda: reference(config, layout), layout, COURSE)


@pytest.mark.parametrize(
    ("case", "cache"),
    [
        ("gemma3-stretched", "auto"),
        ("mistral-window", "int8"),
        ("gemma4-alike", "auto"),
        ("gemma4-shared-kv", "int8"),
        ("gemma3n", "bfloat16"),
        ("deepseek-v4", "auto"),
        ("deepseek-v4-unlike-blocks", "bfloat16"),
    ],
)
def test_the_cpu_kernels_read_no_block_behind_a_window(
    case: str, cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_theirs(*CASES[case]).save_pretrained(tmp_path)
    model = replace(cpu_model(tmp_path), kv_cache_dtype=cache)
    layout = kv_layout(model.config, POSITIONS)

    def forward() -> Forward:
        return model.forward(block_size=BLOCK, num_blocks=BLOCKS, threads=2)

    with monkeypatch.context() as patch:
        patch.setattr(
            cpu,
            "kv_layout",
            lambda config, _: one_group(config.num_layers, layers_that_read(config)),
        )
        one = forward()
    check(one, forward, layout, COURSE)
