"""config.json of Step 3.5 and 3.7, which says for each layer what differs between layers."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import StartupError, UnsupportedModel
from penstock.model.config import ModelConfig
from penstock.model.sharing import check_shared
from tests.shared.releases.reading import RELEASES, ours

STEP = "stepfun-ai/Step-3.7-Flash"
RELEASE: dict[str, Any] = RELEASES[STEP]["config"]


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
def test_other_variants_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        ours(RELEASE | change, STEP)


def test_step_35_says_it_for_each_layer() -> None:
    """Its config.json, written from memory: what differs between layers has a value for each, and
    for the layers that draft."""
    kinds = [*RELEASE["layer_types"], *["sliding_attention"] * 3]
    full = [kind == "full_attention" for kind in kinds]
    own = {
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
    config = ours(RELEASE | own, STEP)
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
