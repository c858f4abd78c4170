"""config.json of Molmo 2, written from memory: its 4B, 8B and O 7B."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import LayerSpec
from penstock.model.projector_spec import PooledProjector
from penstock.model.rope_spec import RopeScaling, RopeSpec
from penstock.model.tower_spec import LearnedPositions
from penstock.prepare.chat_templates import with_bos
from penstock.prepare.hub_config import read_config, towers_of
from tests.shared.families.release_configs import release

HEADS = {"hidden_size": 1152, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 72}
BESIDE = {"attention_dropout": 0.0, "residual_dropout": 0.0, "float32_attention": True}
SMALL = release("others", "molmo2-4b")


def changed(base: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """changes: of nested values, `text_config__vocab_size=3`."""
    values = copy.deepcopy(base)
    for path, value in changes.items():
        *sections, key = path.split("__")
        section = values
        for each in sections:
            section = section[each]
        section[key] = value
    return values


OF_OLMO = changed(
    SMALL,
    adapter_config__intermediate_size=11_008,
    adapter_config__text_hidden_size=4096,
    text_config__hidden_size=4096,
    text_config__intermediate_size=11_008,
    text_config__num_hidden_layers=32,
    text_config__num_key_value_heads=32,
    text_config__norm_after=True,
    text_config__qk_norm_type="olmo",
    text_config__rope_theta=500_000,
    text_config__rope_scaling={
        "rope_type": "yarn",
        "factor": 8.0,
        "attention_factor": 1.2079441541679836,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 8192,
    },
    text_config__rope_scaling_layers=[3, 7, 11, 15, 19, 23, 27, 31],
    text_config__vocab_size=100_278,
    image_start_token_id=100_278,
    image_end_token_id=100_279,
    image_patch_id=100_280,
)


def read(base: dict[str, Any] = SMALL, **changes: Any) -> ModelConfig:
    return read_config(Fields(changed(base, **changes), "molmo2"))


def test_towers_and_poolers_of_molmo_are_read() -> None:
    small = read()
    assert (small.architecture, small.vocab_size, small.head_bias) == ("qwen3", 152_064, True)
    assert small.layers == (LayerSpec(attention=AttentionSpec(norm="head")),)
    assert small.ropes == (RopeSpec(theta=5e6, dims=128),)
    assert small.vision is not None
    tower = small.vision.tower
    assert (tower.num_layers, tower.taken, tower.width) == (25, (25, 19), 2 * 1152)
    assert tower.positions == LearnedPositions(side=27)
    assert (small.vision.image_size, small.vision.spans_whole) == (378, True)
    assert small.vision.projector == PooledProjector(
        size=1152, num_heads=16, inner=9728, tokens=128, patch_token=2
    )
    large = read(OF_OLMO)
    assert (large.architecture, large.vocab_size) == ("olmo3", 100_406)
    stretched = [number for number, layer in enumerate(large.layers) if not layer.attention.rope]
    assert stretched == [3, 7, 11, 15, 19, 23, 27, 31]
    assert {(layer.order, layer.attention.norm) for layer in large.layers} == {("post", "whole")}
    assert {layer.attention.window for layer in large.layers} == {None}
    yarn = RopeScaling(
        kind="yarn",
        factor=8.0,
        original_max_position=8192,
        attention_factor=1.2079441541679836,
        beta_fast=32.0,
        beta_slow=1.0,
    )
    assert large.ropes == (
        RopeSpec(theta=500_000.0, dims=128, scaling=yarn),
        RopeSpec(theta=500_000.0, dims=128),
    )


def test_what_a_file_leaves_out_is_the_makers_default() -> None:
    """Keys in which a release differs from the default are kept."""
    usual = {
        "vit_config": set(SMALL["vit_config"]) - {"image_num_pos"},
        "adapter_config": {"hidden_size", "num_attention_heads", "head_dim", "vit_layers"},
        "text_config": {"head_dim", "additional_vocab_size", "layer_norm_eps", "norm_after"},
    }
    for section, keys in usual.items():
        for key in keys:
            values = copy.deepcopy(SMALL)
            del values[section][key]
            assert read_config(Fields(values, "molmo2")) == read(), (section, key)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vit_config__image_num_pos": 577}, "image_num_pos is 577; 729"),
        ({"vit_config__image_default_input_size": [378, 364]}, "a square"),
        ({"vit_config__image_default_input_size": [10**9, 10**9]}, "a square of 1 to"),
        ({"vit_config__image_patch_size": 0}, "image_patch_size is 0"),
        ({"vit_config__hidden_size": 10**9}, "hidden_size is 1000000000"),
        ({"vit_config__intermediate_size": 0}, "intermediate_size is 0"),
        ({"vit_config__num_hidden_layers": 10**9}, "1000000000"),
        ({"vit_config__num_hidden_layers": 8}, "which has 8"),
        ({"vit_config__num_attention_heads": 15}, "head_dim is 72"),
        ({"vit_config__num_key_value_heads": 4}, "num_key_value_heads is 4; num_attention_heads"),
        ({"vit_config__head_dim": 64}, "head_dim is 64"),
        ({"vit_config__hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"adapter_config__vit_layers": []}, "vit_layers is \\[\\]"),
        ({"adapter_config__vit_layers": [-3, -3]}, "each once"),
        ({"adapter_config__vit_layers": [27]}, "layer 28 is taken"),
        ({"adapter_config__vit_layers": [-99]}, "layer -99 is taken"),
        ({"adapter_config__pooling_attention_mask": False}, "pooling_attention_mask is False"),
        ({"adapter_config__pooling_attention_mask": None}, "pooling_attention_mask"),
        ({"adapter_config__text_hidden_size": 4096}, "text_hidden_size is 4096; 2560"),
        ({"adapter_config__intermediate_size": 10**9}, "intermediate_size"),
        ({"adapter_config__hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"adapter_config__num_key_value_heads": 4}, "num_key_value_heads is 4"),
        ({"text_config__additional_vocab_size": 0}, "additional_vocab_size is 0"),
        ({"text_config__additional_vocab_size": 10**9}, "additional_vocab_size"),
        ({"text_config__hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"text_config__qk_norm_type": "other"}, "qwen3 or olmo"),
        ({"text_config__rope_scaling_layers": [36]}, "layers from 0 to 35"),
        ({"text_config__rope_scaling": {"rope_type": "spiral"}}, "'spiral' is not served"),
        ({"text_config__model_type": "llama"}, "molmo2_text are"),
        ({"image_patch_id": 3}, "image_patch_id is 3"),
        ({"image_patch_id": 152_064}, "image_patch_id is 152064"),
    ],
)
def test_other_variants_of_molmo_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        read(**changes)


def test_a_chat_begins_with_bos() -> None:
    """The makers' processor puts it there, and not their template."""
    assert [tower.begins_with_bos for tower in towers_of(Fields(SMALL, "molmo2"))] == [True]
    assert with_bos("{{ messages }}") == "{{ bos_token }}{{ messages }}"
    assert with_bos("{{ bos_token }}x") == "{{ bos_token }}x"
    assert with_bos("") == ""
