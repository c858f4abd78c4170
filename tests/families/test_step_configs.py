"""config.json of Step 3.5 and 3.7, which says for each layer what differs between layers; and of
what 3.7 sees with."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from penstock.errors import StartupError, UnsupportedModel
from penstock.model.config import ModelConfig
from penstock.model.projector_spec import HalvingProjector
from penstock.model.sharing import check_shared
from penstock.model.tower_spec import RotaryPositions
from tests.shared.families.release_configs import release
from tests.shared.releases.reading import RELEASES, ours, theirs

STEP = "stepfun-ai/Step-3.7-Flash"
RELEASE: dict[str, Any] = RELEASES[STEP]["config"]


def by_layers() -> dict[str, Any]:
    """What Step 3.5's config.json says of each layer."""
    kinds = [*RELEASE["layer_types"], *["sliding_attention"] * 3]
    full = [kind == "full_attention" for kind in kinds]
    return {
        "architectures": ["Step3p5ForCausalLM"],
        "attention_other_setting": {
            "attention_type": "sliding_attention",
            "head_dim": 128,
            "num_attention_groups": 8,
            "num_attention_heads": 96,
            "true_head_dim": 128,
        },
        "layer_types": kinds,
        "moe_layers_enum": ",".join(map(str, range(3, 45))),
        "moe_num_experts": 288,
        "moe_top_k": 8,
        "num_attention_groups": 8,
        "partial_rotary_factors": [0.5 if each else 1.0 for each in full],
        "rope_scaling": {
            "factor": 2.0,
            "high_freq_factor": 32.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 131_072,
            "rope_type": "llama3",
        },
        "rope_theta": [5_000_000.0 if each else 10_000.0 for each in full],
        "swiglu_limits": [0.0] * 43 + [7.0] * 2 + [0.0] * 3,
        "swiglu_limits_shared": [0.0] * 43 + [16.0] * 2 + [0.0] * 3,
        "yarn_only_types": ["full_attention"],
    }


SIGHTED = release("others", "step-3.7")
"""The config.json of Step 3.7 with its tower, written from memory."""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
        ({"use_head_wise_attn_gate": False}, "use_head_wise_attn_gate is False"),
        ({"layer_types": ["full_attention"] * 47}, "a list of 45 values, or of 48"),
        ({"rope_theta": [1e4] * 44 + [1e6]}, "one value in all layers of kind full"),
        ({"moe_layers_enum": "3,four"}, "numbers of layers, a list or with commas"),
        ({"swiglu_limits": [-1.0] * 45}, "swiglu_limits is .* aren't negative"),
        ({"num_sliding_attention_heads": 60}, "60 attention heads can't be shared out"),
        ({"per_layer_config": {"1": {"head_dim": 64}}}, "for each layer with a window"),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0"),
    ],
)
def test_other_variants_of_step_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        ours(RELEASE | change, STEP)


def test_step_35_says_it_for_each_layer() -> None:
    """Its config.json, written from memory: what differs between layers has a value for each, and
    for the layers that draft."""
    config = ours(RELEASE | by_layers(), STEP)
    assert isinstance(config, ModelConfig)
    wide, local = config.ropes
    assert (wide.dims, local.dims) == (64, 128)
    assert wide.scaling is not None
    assert local.scaling is None
    layers = [config.layer(number) for number in range(config.num_layers)]
    assert [layer.attention.query_heads for layer in layers[:5]] == [None, 96, 96, 96, None]
    assert [layer.feed_forward.experts is None for layer in layers[:4]] == [True, True, True, False]
    last, before = layers[-1].feed_forward, layers[-3].feed_forward
    assert last.experts is not None
    assert (last.experts.limit, last.limit, before.limit) == (7.0, 16.0, None)


def test_ranks_share_its_layers_by_stages_alone() -> None:
    config = ours(RELEASE, STEP)
    assert isinstance(config, ModelConfig)
    check_shared(config, 1, 3)
    with pytest.raises(StartupError, match="a gate of each head's output, which one rank"):
        check_shared(config, 2, 1)


def test_the_tower_of_step_37() -> None:
    config = ours(SIGHTED, STEP)
    assert isinstance(config, ModelConfig)
    assert config.vision is not None
    tower = config.vision.tower
    assert (tower.num_layers, tower.intermediate_size, tower.head_dim) == (47, 8960, 96)
    assert tower.positions == RotaryPositions(
        table=52, by_edges=True, columns_first=True, adjacent=True
    )
    assert config.vision.projector == HalvingProjector()
    assert (config.vision.patches_in_row, config.vision.image_size) == (16, None)
    text = ours(RELEASE | by_layers(), STEP)
    assert isinstance(text, ModelConfig)
    assert msgspec.structs.replace(config, vision=None) == text


@pytest.mark.parametrize("section", ["vision_config", ""])
def test_what_a_tower_leaves_out_is_transformers_default(section: str) -> None:
    """In the makers' file, and in the one that transformers writes of it."""
    whole = theirs(SIGHTED)
    again = json.loads(whole.to_json_string(use_diff=False))
    again |= {"architectures": SIGHTED["architectures"], "text_config": SIGHTED["text_config"]}
    if not section:
        again.pop("projector_bias")
        assert ours(again) == ours(SIGHTED)
        return
    assert ours(again) == ours(SIGHTED)
    for values in (SIGHTED, again):
        for key in values[section].keys() - {"model_type"}:
            less = {other: value for other, value in values[section].items() if other != key}
            assert ours(values | {section: less}) == ours(SIGHTED), key


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"use_cls_token": True}, "use_cls_token is True"),
        ({"ues_cls_token": True}, "ues_cls_token is True"),
        ({"use_ln_post": True}, "use_ln_post is True"),
        ({"use_rope2d": False}, "use_rope2d is False"),
        ({"use_abs_posemb": False}, "use_abs_posemb is False"),
        ({"output_dim": 1024}, "output_dim is 1024"),
        ({"pool_type": "attn"}, "pool_type is 'attn'"),
        ({"width": 10**9}, "hidden_size is 1000000000; 1 to"),
        ({"width": 0}, "hidden_size is 0"),
        ({"heads": 7}, "7 attention heads don't divide"),
        ({"heads": 512}, "a multiple of 4"),
        ({"layers": 10**9}, "1000000000; 1 to"),
        ({"mlp_ratio": 1e300}, "mlp_ratio is 1e"),
        ({"mlp_ratio": -1}, "mlp_ratio is -1"),
        ({"intermediate_size": 64}, "intermediate_size is 64; 8960"),
        ({"image_size": 10**9}, "image_size"),
        ({"patch_size": 0}, "patch_size"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"num_channels": 4}, "num_channels"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type is 'yarn'"),
    ],
)
def test_other_towers_are_refused(change: dict[str, Any], said: str) -> None:
    tower = SIGHTED["vision_config"] | change
    with pytest.raises(UnsupportedModel, match=said):
        ours(SIGHTED | {"vision_config": tower}, STEP)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"understand_projector_stride": 1}, "understand_projector_stride is 1"),
        ({"vision_select_layer": -2}, "vision_select_layer is -2"),
        ({"projector_bias": 1}, "projector_bias is 1"),
    ],
)
def test_other_projectors_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        ours(SIGHTED | change, STEP)
