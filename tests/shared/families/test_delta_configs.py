"""Kimi Linear and OLMo Hybrid: config.json as their releases are remembered to have it, and what is
refused."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.mechanisms import CHANNEL_DECAY, LATENT, NO_ROTATION, OVERSHOOTING, mechanisms
from penstock.model.recurrent_spec import GatedDeltaSpec, state_numbers
from penstock.prepare.hub_config import read_config
from tests.shared.families.release_configs import release

FULL = [4, 8, 12, 16, 20, 24, 27]
LINEAR = {
    "full_attn_layers": FULL,
    "head_dim": 128,
    "kda_layers": [number for number in range(1, 28) if number not in FULL],
    "num_heads": 32,
    "short_conv_kernel_size": 4,
}
KIMI = release("others", "kimi-linear")
OLMO = release("others", "olmo-hybrid")


def read(values: dict[str, Any], **change: Any) -> ModelConfig:
    return read_config(Fields(values | change, "config.json"))


def test_kimi_linear_is_read() -> None:
    config = read(KIMI)
    assert {CHANNEL_DECAY, LATENT} <= mechanisms(config)
    attending = [number for number, layer in enumerate(config.layers, 1) if layer.attends]
    assert attending == FULL
    delta = config.layers[0].recurrent
    assert isinstance(delta, GatedDeltaSpec)
    assert state_numbers(delta) == 3 * 3 * 4096 + 32 * 128 * 128
    assert (delta.rank, delta.times, config.max_position) == (128, 4096, 1 << 20)
    experts = [layer.feed_forward.experts for layer in config.layers]
    assert experts[0] is None
    assert {each.count for each in experts[1:] if each is not None} == {256}
    assert config.layers[3].attention.scale == 192**-0.5


def test_olmo_hybrid_is_read() -> None:
    config = read(OLMO)
    assert {OVERSHOOTING, NO_ROTATION} <= mechanisms(config)
    delta = config.layers[0].recurrent
    assert isinstance(delta, GatedDeltaSpec)
    assert (delta.key_dim, delta.value_dim, delta.strongest) == (96, 192, 2.0)
    # transformers' defaults are the release's.
    sizes = ("layer_types", *(key for key in OLMO if key.startswith("linear_")))
    assert read({key: value for key, value in OLMO.items() if key not in sizes}) == config
    orders = [layer.order for layer in config.layers]
    assert orders == ["pre", "pre", "pre", "post"] * 8
    turning = read(OLMO, rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
    assert turning.layers[3].attention.rope == 0
    assert turning.ropes[0].theta == 500000.0
    assert read(OLMO, rope_parameters=None).ropes[0].theta == 10000.0


@pytest.mark.parametrize(
    ("values", "change", "said"),
    [
        (KIMI, {"mla_use_nope": False}, "mla_use_nope is False"),
        (KIMI, {"hidden_act": "situ"}, "hidden_act 'situ' is not served"),
        (KIMI, {"moe_router_activation_func": "softmax"}, "scoring_func is 'softmax'"),
        (KIMI, {"linear_attn_config": LINEAR | {"gate_lower_bound": -5.0}}, "gate_lower_bound"),
        (KIMI, {"linear_attn_config": LINEAR | {"kda_layers": [1]}}, "layers 1 to 27 once"),
        (KIMI, {"linear_attn_config": LINEAR | {"num_heads": 0}}, "key_heads is 0"),
        (OLMO, {"linear_num_key_heads": 7}, "30 value heads can't share 7"),
        (OLMO, {"layer_types": ["conv"] * 32}, "full_attention, linear_attention are served"),
    ],
)
def test_other_variants_of_delta_layers_are_refused(
    values: dict[str, Any], change: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        read(values, **change)
