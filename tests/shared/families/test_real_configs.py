"""config.json as well-known models have it: each is read, unknown settings and all."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.mechanisms import mechanisms
from penstock.prepare.hub_config import read_config
from tests.shared.families.release_configs import releases

DENSE, EXPERTS = releases("dense"), releases("experts")
TEXT_FAMILIES = releases("text_families")

USUAL = {"torch_dtype": "bfloat16", "transformers_version": "4.46.0", "use_cache": True}
CONFIGS: dict[str, dict[str, Any]] = EXPERTS | DENSE | TEXT_FAMILIES


@pytest.mark.parametrize("model", CONFIGS)
def test_it_is_read(model: str) -> None:
    config = read_config(Fields(USUAL | CONFIGS[model], model))
    assert len(config.layers) in (1, config.num_layers)
    assert mechanisms(config) or model == "qwen2.5"


def test_whispers_decoder_stands_behind_half_a_minute_of_sound() -> None:
    config = read_config(Fields(USUAL | CONFIGS["whisper-large-v3-turbo"], "whisper"))
    assert (config.num_layers, config.encoder_rows, config.max_position) == (4, 1500, 1948)
    assert config.audio is not None
    assert (config.audio.tower.num_layers, config.audio.tower.mel_bins) == (32, 128)
    assert config.tie_word_embeddings


def test_what_a_release_leaves_out_is_transformers_default() -> None:
    config = read_config(Fields(CONFIGS["gemma-3-4b"], "gemma-3-4b"))
    assert (config.vocab_size, config.num_heads, config.head_dim) == (262_208, 8, 256)
    assert [layer.attention.window for layer in config.layers[:6]] == [1024] * 5 + [None]
    assert config.ropes[0].scaling is not None
    assert config.ropes[1].scaling is None


def test_gemma_4s_layers_differ_by_what_they_see() -> None:
    small = read_config(Fields(CONFIGS["gemma-4-e2b"], "gemma-4-e2b"))
    assert [small.kv_heads(number).size for number in range(3, 6)] == [256, 512, 256]
    assert [small.layer(number).attention.reads for number in (14, 15, 19)] == [None, 13, 14]
    assert [small.inner(number) for number in (14, 15)] == [6144, 12_288]
    large = read_config(Fields(CONFIGS["gemma-4-26b-a4b"], "gemma-4-26b-a4b"))
    heads = [large.kv_heads(number) for number in (4, 5)]
    assert [(each.count, each.size) for each in heads] == [(8, 256), (2, 512)]
    assert large.per_layer_inputs is None  # a null
    assert large.ropes[0].scaling is not None
    assert (large.ropes[0].dims, large.ropes[0].scaling.kept) == (512, 64)


def test_gemma_4_as_transformers_5_writes_it() -> None:
    """Heads stand at each layer, by numbers of two digits."""
    text = CONFIGS["gemma-4-26b-a4b"]["text_config"]
    old = {key: value for key, value in text.items() if "global" not in key}
    heads = {
        f"{number:02}": {"head_dim": 512, "num_key_value_heads": 2} for number in range(5, 30, 6)
    }
    wrapped = CONFIGS["gemma-4-26b-a4b"]
    config = read_config(Fields(wrapped | {"text_config": old | {"per_layer_config": heads}}, ""))
    assert config == read_config(Fields(wrapped, ""))
    heads["04"] = heads["05"]
    with pytest.raises(UnsupportedModel, match="per_layer_config"):
        read_config(Fields(wrapped | {"text_config": old | {"per_layer_config": heads}}, ""))


def test_positions_stretched_by_yarn_sharpen_scores_over_latents() -> None:
    """The figures are those of the releases' own code."""
    v3 = read_config(Fields(CONFIGS["deepseek-v3"], "deepseek-v3"))
    assert v3.layers[0].attention.scale == pytest.approx(0.13523377886)
    assert v3.ropes[0].scaling is not None
    assert v3.ropes[0].scaling.attention_factor == 1.0
    flash = read_config(Fields(CONFIGS["glm-4.7-flash"], "glm-4.7-flash"))
    assert flash.layers[0].attention.scale == 256**-0.5
    assert (flash.num_kv_heads, flash.head_dim) == (1, 576)


def test_heads_rotate_in_part_where_a_config_counts_their_numbers() -> None:
    config = read_config(Fields(CONFIGS["minimax-m2"], "minimax-m2"))
    assert (config.head_dim, config.ropes[0].dims) == (128, 64)


@pytest.mark.parametrize(("head", "rotating"), [(44, 30), (90, 52), (128, 128), (128, 2), (86, 46)])
def test_as_many_numbers_rotate_as_a_config_counts(head: int, rotating: int) -> None:
    """Also where their share of the head, times its size, is a little less than their number."""
    change = {"head_dim": head, "rotary_dim": rotating}
    config = read_config(Fields(CONFIGS["minimax-m2"] | change, "minimax-m2"))
    assert config.ropes[0].dims == rotating


@pytest.mark.parametrize(
    ("model", "change", "said"),
    [
        ("whisper-tiny.en", {"scale_embedding": True}, "scale_embedding is True"),
        ("whisper-tiny.en", {"d_model": 385}, "6 attention heads don't divide d_model, 385"),
        ("whisper-tiny.en", {"max_source_positions": 1 << 20}, "1 to 65536 are allowed"),
        ("whisper-tiny.en", {"num_mel_bins": 0}, "num_mel_bins is 0"),
        ("apertus-8b", {"hidden_act": "silu"}, "hidden_act 'silu' is not served; xielu is"),
        ("apertus-8b", {"post_norm": True}, "post_norm is True; False is needed"),
        ("dbrx-instruct", {"attn_config": {"clip_qkv": -8}}, "clip_qkv is -8; a number above 0"),
        ("dbrx-instruct", {"ffn_config": {"moe_normalize_expert_weights": 2}}, "is 2; 1, or null"),
        ("dbrx-instruct", {"tie_word_embeddings": True}, "tie_word_embeddings is True; false is"),
        ("bitnet-b1.58-2b-4t", {"hidden_act": "gelu"}, "'gelu' is not served; relu2, silu are"),
        ("deepseek-v2-lite", {"topk_method": "noaux_tc"}, "topk_method is 'noaux_tc'"),
        ("deepseek-v2-lite", {"norm_topk_prob": True}, "norm_topk_prob true"),
        ("deepseek-v3", {"rope_interleave": False}, "rope_interleave is False"),
        ("deepseek-v3", {"n_group": 7}, "8 of 256 experts can't be chosen from 4 of 7 groups"),
        ("deepseek-v3", {"kv_lora_rank": 1 << 40}, "1 to 65536 are allowed"),
        ("deepseek-v3", {"moe_layer_freq": 2}, "moe_layer_freq is 2"),
        (
            "gemma-4-e2b",
            {
                "text_config": EXPERTS["gemma-4-26b-a4b"]["text_config"]
                | {"hidden_size": 8, "intermediate_size": None}
            },
            "intermediate_size is missing",
        ),
        ("gpt-oss-20b", {"swiglu_limit": 6.0}, "swiglu_limit is 6"),
        ("minimax-m2", {"qk_norm_type": "per_head"}, "qk_norm_type is 'per_head'; 'per_layer' is"),
        ("minimax-m2", {"use_routing_bias": False}, "use_routing_bias is False; True is"),
        ("minimax-m2", {"shared_intermediate_size": 8}, "shared_intermediate_size is 8, which is"),
    ],
)
def test_other_variants_of_well_known_models_are_refused(
    model: str, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        read_config(Fields(CONFIGS[model] | change, model))
