"""The CPU kernels' loading and whole pass against the reference's, on the same checkpoint, on
each instruction set."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
import torch

from penstock.model.config import ModelConfig
from penstock.model.rope_spec import RopeScaling
from penstock_worker.forward.cpu.backend import MECHANISMS
from penstock_worker.forward.interface import Unable, require
from testing.model_configs import llama_config, varied
from tests.worker.checkpoints import load_model, tiny_files
from tests.worker.cpu_model import CPUModel
from tests.worker.driver import Job
from tests.worker.models.parity import run_with_logits

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("isa")]

BASE = llama_config(
    architecture="llama",
    vocab_size=301,
    hidden_size=60,
    intermediate_size=80,
    num_layers=2,
    num_heads=5,
    num_kv_heads=1,
    head_dim=32,
    max_position=2048,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
)


def variant(**changes: object) -> ModelConfig:
    return varied(BASE, **changes)


MODELS = {
    "5 heads on 1, tied": variant(tie_word_embeddings=True),
    "9 heads on 3, inner of 7 x 16": variant(
        num_heads=9, num_kv_heads=3, head_dim=16, intermediate_size=112, hidden_size=144
    ),
    "qwen3: norms of heads": variant(
        architecture="qwen3", qk_norm=True, num_heads=7, num_kv_heads=7, head_dim=48
    ),
    "qwen2: bias": variant(architecture="qwen2", qkv_bias=True, num_heads=4, num_kv_heads=2),
    "scaled rope": variant(
        rope_scaling=RopeScaling(kind="llama3", factor=8.0, original_max_position=64)
    ),
}


def distances(ours: list[tuple[Job, torch.Tensor]], true: list[tuple[Job, torch.Tensor]]) -> float:
    """Largest difference of a row's logits, of its largest; the worst row's."""
    worst = []
    for (_, mine), (_, theirs) in zip(ours, true, strict=True):
        assert mine.shape == theirs.shape
        worst.append(float(((mine - theirs).abs().amax(-1) / theirs.abs().amax(-1)).max()))
    return max(worst)


def mean_distance(
    ours: list[tuple[Job, torch.Tensor]], true: list[tuple[Job, torch.Tensor]]
) -> float:
    """The mean distance of all logits, in units of their mean size."""
    mine, theirs = (torch.cat([logits for _, logits in each]) for each in (ours, true))
    return float((mine - theirs).abs().mean() / theirs.abs().mean())


def prompts(config: ModelConfig, *lengths: int) -> list[list[int]]:
    choose = random.Random(1)
    return [[choose.randrange(config.vocab_size) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_float32(config: ModelConfig, tmp_path: Path) -> None:
    files, given = tiny_files(tmp_path, config), prompts(config, 1, 33, 300)
    ours = run_with_logits(CPUModel(config, files, "float32"), given, 1)
    true = run_with_logits(load_model(config, files, torch.float32), given, 1)
    worst = distances(ours, true)
    assert worst < 1e-4


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_bfloat16(config: ModelConfig, tmp_path: Path) -> None:
    """Nearer to float32 than the reference in bfloat16, which rounds after each operation; the
    kernels only round what products and the cache take."""
    files, given = tiny_files(tmp_path, config), prompts(config, 1, 33, 300)
    true = run_with_logits(load_model(config, files, torch.float32), given, 1)
    ours = run_with_logits(CPUModel(config, files, "bfloat16"), given, 1)
    reference = run_with_logits(load_model(config, files, torch.bfloat16), given, 1)
    error = mean_distance(ours, true)
    assert 1e-3 < error < 0.05
    assert error < mean_distance(reference, true)


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_int8_cache(config: ModelConfig, tmp_path: Path) -> None:
    """The reference dequantises what it has stored and goes on in float32; in the kernels queries
    and weights are bfloat16, which costs little beside the bytes."""
    files, given = tiny_files(tmp_path, config), prompts(config, 1, 33, 300)
    true = run_with_logits(CPUModel(config, files, "float32", backend="reference"), given, 1)
    ours, reference = (
        run_with_logits(
            CPUModel(config, files, "float32", kv_cache_dtype="int8", backend=backend), given, 1
        )
        for backend in ("cpu", "reference")
    )
    error = mean_distance(reference, true)
    assert 1e-3 < error < 0.05
    assert mean_distance(ours, true) < 1.15 * error
    assert mean_distance(ours, reference) < 0.75 * error


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_int8_weights(config: ModelConfig, tmp_path: Path) -> None:
    """Random weights are no kind ones: attention's sharp choices make each rounding large."""
    files, given = tiny_files(tmp_path, config), prompts(config, 1, 33, 300)
    true = run_with_logits(CPUModel(config, files, "float32"), given, 1)
    ours = run_with_logits(CPUModel(config, files, "auto", quantization="int8"), given, 1)
    error = mean_distance(ours, true)
    assert 1e-3 < error < 0.12


def test_long_context(tmp_path: Path) -> None:
    """1,200 tokens of prefill in chunks of 512, then decode: several splits of the keys."""
    files = tiny_files(tmp_path, BASE)
    ours, true = CPUModel(BASE, files, "float32"), load_model(BASE, files, torch.float32)
    given = prompts(BASE, 1200, 5)
    mine, theirs = run_with_logits(ours, given, 8), run_with_logits(true, given, 8)
    assert [job.tokens for job, _ in mine] == [job.tokens for job, _ in theirs]
    worst = distances(mine, theirs)
    assert worst < 1e-4


def test_what_the_kernels_would_ignore_is_refused() -> None:
    require(MECHANISMS, BASE)
    for config, named in (
        (variant(mlp_bias=True), "biases of the feed-forward"),
        (variant(output_bias=True), "a bias of the attention's output"),
        (
            msgspec.structs.replace(BASE, logits_soft_cap=30.0),
            "a multiplier, cap or bias of logits",
        ),
    ):
        with pytest.raises(Unable, match=named):
            require(frozenset(), config)
