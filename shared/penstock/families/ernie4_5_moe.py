"""ERNIE 4.5 with a mixture of experts, chosen by corrected softmax scores, beside some that every
token has, in all layers but the first ones; rotary pairs are adjacent.

Source: Baidu, "ERNIE 4.5 technical report", 2025.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.families import hub_reading as hub
from penstock.families.deepseek import GGUF_NAMES, NAMES
from penstock.families.family import Family, TensorNames
from penstock.families.gguf_reading import GGUFMetadata
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec, NormSpec


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    hub.only(fields, use_bias=False, moe_gate_act="softmax")
    sizes, inner = hub.sizes(fields, tied=True), fields.integer("moe_intermediate_size", 1536)
    fields.ignore("moe_norm_min")  # chosen scores never add up to as little
    fields.ignore("num_nextn_predict_layers")  # for drafts only
    experts = ExpertsSpec(
        **_counts(fields),
        inner=inner,
        correction=True,
        shared_inner=inner * fields.integer("moe_num_shared_experts", 2),
    )
    count = sizes["num_layers"]
    first, every = (
        fields.integer("moe_layer_start_index", 1),
        fields.integer("moe_layer_interval", 1),
    )
    last = fields.integer("moe_layer_end_index", -1)
    if every < 1:
        raise fields.wrong("moe_layer_interval", "a positive number")
    sparse = [
        first <= number <= (count if last == -1 else last) and (number + 1) % every == 0
        for number in range(count)
    ]
    return ModelConfig(
        architecture="ernie4_5_moe",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-5)),
        ropes=(hub.rope(fields, sizes["head_dim"], theta=500_000.0),),
        layers=hub.shared(_layer(experts if each else None) for each in sparse),
    )


def _counts(fields: Fields) -> dict[str, Any]:
    """How many experts there are, and how many a token has, in ERNIE's words or in those that
    other families of transformers have for it."""
    words = {
        "num_experts": fields.integer("moe_num_experts", 64),
        "num_experts_per_tok": fields.integer("moe_k", 6),
    }
    return hub.expert_counts(fields.completed(**words), "num_experts")


def _layer(experts: ExpertsSpec | None) -> LayerSpec:
    return LayerSpec(feed_forward=FeedForwardSpec(experts=experts))


def _gguf(model: GGUFMetadata) -> ModelConfig:
    sizes, keys = model.sizes(), model.keys
    # A quotient of other sizes, which is not the shared experts' in every release.
    keys.ignore("expert_shared_feed_forward_length")
    inner, every = (
        keys.integer("expert_feed_forward_length"),
        keys.integer("interleave_moe_layer_step", 1),
    )
    experts = ExpertsSpec(
        **model.expert_counts(),
        inner=inner,
        correction=model.has_in_any("exp_probs_b.bias", sizes["num_layers"]),
        shared_inner=inner * keys.integer("expert_shared_count", 0),
    )
    if every < 1:
        raise keys.wrong("interleave_moe_layer_step", "a positive number")
    dense = keys.integer("leading_dense_block_count", 0)
    sparse = [
        number >= dense and (number + 1) % every == 0 for number in range(sizes["num_layers"])
    ]
    return ModelConfig(
        architecture="ernie4_5_moe",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=hub.shared(_layer(experts if each else None) for each in sparse),
    )


STATICS = "moe_statics.e_score_correction_bias"

ERNIE4_5_MOE = Family(
    "ernie4_5_moe",
    ("Ernie4_5_MoeForCausalLM",),
    "ERNIE 4.5 MoE",
    _hub,
    hub_names=TensorNames(
        {
            **NAMES.modules,
            f"mlp.{STATICS}": "mlp.router.correction",
            f"mlp.gate.{STATICS}": "mlp.router.correction",
        },
        correction_row=True,
        pairs_adjacent=True,
    ),
    gguf="ernie4_5-moe",
    read_gguf=_gguf,
    gguf_names=replace(GGUF_NAMES, correction_row=True),
)
