"""config.json of newer models, written from memory: no release's file could be had."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.recurrent_spec import Mamba2Spec
from penstock.prepare.hub_config import read_config
from tests.shared.families.release_configs import release

LAGUNA = release("others", "laguna")
MISTRAL4 = release("others", "mistral-4")
BAMBA = release("others", "bamba")


def test_lagunas_layers_have_heads_and_rotations_of_their_own() -> None:
    config = read_config(Fields(LAGUNA, "laguna"))
    assert [config.query_heads(number) for number in range(5)] == [48, 64, 64, 64, 48]
    assert [config.layer(number).attention.window for number in (0, 1)] == [None, 512]
    assert [rope.dims for rope in config.ropes] == [64, 128]
    assert [rope.scaling is None for rope in config.ropes] == [False, True]
    assert config.layer(0).feed_forward.experts is None
    assert config.layer(1).feed_forward.experts is not None


def test_queries_of_mistral_small_4_grow_after_its_first_context() -> None:
    config = read_config(Fields(MISTRAL4, "mistral4"))
    (rope,) = config.ropes
    assert (rope.dims, rope.query_growth, rope.query_growth_length) == (64, 0.1, 8192)
    assert (config.num_kv_heads, config.head_dim) == (1, 320)
    plain = {key: value for key, value in MISTRAL4.items() if key != "rope_parameters"}
    assert read_config(Fields(plain, "mistral4")).ropes == (rope,)


def test_three_of_bambas_layers_attend() -> None:
    config = read_config(Fields(BAMBA, "bamba"))
    mixing = [layer.recurrent for layer in config.layers]
    assert [at for at, spec in enumerate(mixing) if spec is None] == [9, 18, 27]
    assert isinstance(mixing[0], Mamba2Spec)
    assert (mixing[0].heads, mixing[0].state, config.ropes[0].dims) == (128, 128, 64)


@pytest.mark.parametrize(
    ("settings", "change", "said"),
    [
        (LAGUNA, {"gating": "per-element"}, "gating is 'per-element'; 'per-head' is needed"),
        (LAGUNA, {"gating": False}, "gating is False"),
        (LAGUNA, {"gating_types": ["per_element"] * 40}, "gating_types"),
        (LAGUNA, {"moe_router_logit_softcapping": 30.0}, "moe_router_logit_softcapping is 30"),
        (LAGUNA, {"moe_apply_router_weight_on_input": True}, "moe_apply_router_weight_on_input"),
        (LAGUNA, {"num_attention_heads_per_layer": [48] * 39}, "a list of 40 multiples of 8"),
        (LAGUNA, {"num_attention_heads_per_layer": [12] * 40}, "a list of 40 multiples of 8"),
        (LAGUNA, {"rope_parameters": {"rope_type": "default"}}, "full_attention is None; an obje"),
        (MISTRAL4, {"n_group": 7}, "128 experts can't be chosen from 1 of 7 groups"),
        (MISTRAL4, {"qk_rope_head_dim": 32}, "partial_rotary_factor is 0.5; 32 / 96"),
        (MISTRAL4, {"rope_interleave": False}, "rope_interleave is False"),
        (BAMBA, {"attn_rotary_emb": 128}, "attn_rotary_emb is 128"),
        (BAMBA, {"attn_layer_indices": [32]}, "attn_layer_indices is .32.; a list of numbers"),
        (BAMBA, {"mamba_d_head": 32}, "128 Mamba heads of 32 don't make up the inner size 8192"),
    ],
)
def test_other_variants_of_newer_text_models_are_refused(
    settings: dict[str, Any], change: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        read_config(Fields(settings | change, "config.json"))
