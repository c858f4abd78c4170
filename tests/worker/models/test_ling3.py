"""Ling 3 against what is put together of transformers' parts, and the same bits in any company and
any chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.mechanisms import mechanisms
from penstock.model.prepared_model import WeightFiles
from penstock.prepare.hub_config import read_config
from penstock_worker.forward import reference
from penstock_worker.forward.backends import backend_module
from penstock_worker.forward.cpu import backend as cpu
from penstock_worker.models.decoder import DecoderModel
from tests.worker.checkpoints import hub_model
from tests.worker.cpu_model import CPUModel
from tests.worker.models.ling3 import LING3
from tests.worker.models.recurrent_runs import BLOCK, CPURun, RecurrentRun
from tests.worker.models.test_parity_on_cpu import cpu_model
from tests.worker.models.test_recurrent_models import POSITIONS, compare
from tests.worker.models.test_twins import config_json, made_theirs, save
from tests.worker.random_weights import RandomWeights
from tests.worker.recurrent_states import check_own_rows

pytestmark = pytest.mark.timeout(240)
NO_FILES = WeightFiles(format="safetensors", files=(), dtype="float32")


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    return config_json(LING3, made_theirs(LING3).config)


@pytest.mark.slow
def test_equals_what_transformers_parts_compute(tmp_path: Path) -> None:
    theirs = made_theirs(LING3)
    save(LING3, theirs, tmp_path)
    compare(hub_model(tmp_path, torch.float32, POSITIONS), theirs)
    compare(cpu_model(tmp_path), theirs)


def test_rows_of_ling3_depend_on_their_sequence_alone(said: dict[str, Any]) -> None:
    config = read_config(Fields(said, "Ling 3"))
    for dtype in (torch.float32, torch.bfloat16):
        model = DecoderModel(config, RandomWeights(dtype), POSITIONS)
        check_own_rows(RecurrentRun(model, 1).step, RecurrentRun(model, 2).step)


def test_rows_on_cpu_depend_on_their_sequence_alone(
    said: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "open_weights", lambda *ignored, **also: RandomWeights())
    config = read_config(Fields(said, "Ling 3"))
    for dtype in ("float32", "bfloat16"):
        alone, together = (CPUModel(config, NO_FILES, dtype, positions=POSITIONS) for _ in range(2))
        check_own_rows(CPURun(alone, 1).step, CPURun(together, 2, threads=2, every=BLOCK).step)


def test_which_backends_have_it(said: dict[str, Any]) -> None:
    needed = mechanisms(read_config(Fields(said, "Ling 3")))
    assert needed <= reference.MECHANISMS
    assert needed <= cpu.MECHANISMS
    assert not needed <= backend_module("triton").MECHANISMS


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kda_lower_bound", 1.0),
        ("kda_safe_gate", False),
        ("no_kda_lora", False),
        ("gated_attention_proj_granularity_type", "element_wise"),
        ("expert_swiglu_limit_list", [7.0]),
        ("layer_group_size", 0),
    ],
)
def test_other_settings_are_refused(said: dict[str, Any], key: str, value: object) -> None:
    with pytest.raises(UnsupportedModel, match=key):
        read_config(Fields(said | {key: value}, "Ling 3"))


RELEASE = {
    "architectures": ["BailingMoeV3ForCausalLM"],
    "first_k_dense_replace": 1,
    "gated_attention_proj_granularity_type": "head_wise",
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1536,
    "intermediate_size": 4608,
    "kda_lower_bound": -5.0,
    "kda_safe_gate": True,
    "kv_lora_rank": 512,
    "layer_group_size": 4,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 512,
    "n_group": 8,
    "no_kda_lora": True,
    "num_attention_heads": 16,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 24,
    "num_shared_experts": 1,
    "partial_rotary_factor": 0.5,
    "q_lora_rank": 256,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 6e6,
    "routed_scaling_factor": 2.5,
    "score_function": "sigmoid",
    "short_conv_kernel_size": 4,
    "topk_group": 4,
    "v_head_dim": 128,
    "vocab_size": 157184,
}
"""What the 8B release says, from memory."""


def test_the_settings_of_the_8b_release() -> None:
    config = read_config(Fields(dict(RELEASE), "Ling 3"))
    attends = [number for number in range(24) if config.layer(number).recurrent is None]
    assert attends == [3, 7, 11, 15, 19, 23]
    experts = config.layer(1).feed_forward.experts
    assert config.layer(0).feed_forward.experts is None
    assert experts is not None
    assert (experts.count, experts.active, experts.groups, experts.shared_inner) == (128, 8, 8, 512)
    assert config.ropes[0].theta == 6e6
    assert config.ropes[0].dims == 64
