"""Settings with values that nothing can be computed from are refused with the file's name, at
once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.errors import UnsupportedModel
from penstock.families.bounds import layers_without_drafts
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.served import GGUF_ARCHITECTURES
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.kv_layout import kv_layout
from penstock.model.layer_spec import LayerSpec
from penstock.prepare.by_transformers import read_for_transformers
from penstock.prepare.hub_config import read_config
from penstock.prepare.rerankers import reranker_template
from tests.worker.checkpoints import TINY

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LATENT = {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
CASES: dict[str, dict[str, Any]] = {
    "scale by nothing": {
        "architectures": ["Gemma3ForCausalLM"],
        "head_dim": 8,
        "query_pre_attn_scalar": 0,
    },
    "a scale that is no real number": {
        "architectures": ["Gemma3ForCausalLM"],
        "head_dim": 8,
        "query_pre_attn_scalar": -4,
    },
    "beyond a float": {"architectures": ["LlamaForCausalLM"], "hidden_size": 10**400},
    "yarn over one frequency": {
        "architectures": ["LlamaForCausalLM"],
        "rope_parameters": {**YARN, "rope_theta": 1.0},
    },
    "a power beyond a float": {
        "architectures": ["DeepseekV3ForCausalLM"],
        **LATENT,
        **EXPERTS,
        "n_group": 1,
        "topk_group": 1,
        "rope_parameters": {**YARN, "rope_theta": 1e4, "mscale_all_dim": 1e308},
    },
}


@pytest.mark.parametrize("case", CASES)
def test_they_are_refused(case: str) -> None:
    with pytest.raises(UnsupportedModel, match=r"of-a-stranger/config\.json"):
        read_config(Fields(SIZES | CASES[case], "of-a-stranger/config.json"))


@pytest.mark.parametrize("drafts", [-(1 << 62), -1, 4, 1 << 62])
def test_layers_for_drafts_leave_others(drafts: int) -> None:
    keys = Fields({"block_count": 4, "nextn_predict_layers": drafts}, "x.gguf, deepseek2")
    with pytest.raises(UnsupportedModel, match=r"nextn_predict_layers is .*; 0 to 3 are allowed"):
        layers_without_drafts(keys)


@pytest.mark.parametrize("drafts", [-1, 65, 1 << 62, 0.5, True, "1"])
@pytest.mark.parametrize("name", ["DeepseekV3ForCausalLM", "Qwen2ForCausalLM"])
def test_a_senseless_number_of_layers_for_drafts(name: str, drafts: Any) -> None:
    stated = SIZES | LATENT | EXPERTS if "Deepseek" in name else SIZES
    own = {"architectures": [name], "num_nextn_predict_layers": drafts}
    with pytest.raises(UnsupportedModel, match="num_nextn_predict_layers is "):
        read_config(Fields(stated | own, "config.json"))


@pytest.mark.parametrize("scale", [0, -1.0, float("nan"), float("inf")])
def test_experts_that_a_factor_silences(scale: float) -> None:
    own = {"architectures": ["DeepseekV3ForCausalLM"], "routed_scaling_factor": scale}
    groups = {"n_group": 1, "topk_group": 1}
    with pytest.raises(UnsupportedModel, match=r"routed_scaling_factor is .*; a .*number"):
        read_config(Fields(SIZES | LATENT | EXPERTS | groups | own, "config.json"))


def test_labels_of_a_model_in_transformers_code() -> None:
    """transformers makes a list of them."""
    config = {**SIZES, "architectures": ["PersimmonForCausalLM"], "model_type": "persimmon"}
    read_for_transformers(Fields(config, "config.json"))
    with pytest.raises(UnsupportedModel, match="num_labels is 2000000000; at most"):
        read_for_transformers(Fields(config | {"num_labels": 2_000_000_000}, "config.json"))


def test_more_windows_than_groups() -> None:
    layers = tuple(LayerSpec(attention=AttentionSpec(window=n)) for n in range(8, 48))
    config = msgspec.structs.replace(TINY, num_layers=40, layers=layers)
    with pytest.raises(UnsupportedModel, match="40 different windows; at most 32"):
        kv_layout(config, 128)


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("models/Qwen3-Reranker-0.6B", True),
        ("hub/models--Qwen--Qwen3-Reranker-0.6B/snapshots/0123abcd", True),
        ("qwen3-reranker-service/models/Qwen3-8B", False),
        ("models/Qwen3-Reranker-tests/base", False),
    ],
)
def test_a_reranker_is_known_by_its_own_name(path: str, is_one: bool) -> None:
    stated = Fields({"architectures": ["Qwen3ForCausalLM"]}, "config.json")
    assert (reranker_template(Path(path), stated) is not None) is is_one
    assert reranker_template(Path(path), Fields({"architectures": 5}, "config.json")) is None


@pytest.mark.parametrize("length", [0, -8])
def test_queries_that_grow_by_a_length_of_nothing_are_refused(length: int) -> None:
    """They would be no numbers."""
    sizes = {"block_count": 2, "context_length": 128, "embedding_length": 32}
    heads = {"attention.head_count": 4, "attention.layer_norm_rms_epsilon": 1e-5}
    original = {"rope.scaling.original_context_length": length}
    stated = {**sizes, **heads, **original, "feed_forward_length": 48}
    reader = GGUF_ARCHITECTURES["mistral3"].read_gguf
    assert reader is not None
    assert reader(GGUFMetadata(Fields(stated, "x"), (), 64)).architecture == "mistral"
    stated["attention.temperature_scale"] = 0.1
    with pytest.raises(UnsupportedModel, match=f"length is {length}; a positive number is needed"):
        reader(GGUFMetadata(Fields(stated, "x"), (), 64))
