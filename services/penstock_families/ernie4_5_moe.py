"""ERNIE 4.5 with a mixture of experts, chosen by corrected softmax scores, plus shared experts, in
all layers but the first ones; rotary pairs are adjacent.

Source: Baidu, "ERNIE 4.5 technical report", 2025.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.families import hub_reading as hub
from penstock.families.deepseek import GGUF_NAMES, NAMES
from penstock.families.family import Family
from penstock.families.source import GGUFSource, Source, decoder, of_gguf, of_hub
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec


def _read(source: Source) -> ModelConfig:
    source.activation("silu")
    source.only(use_bias=False, moe_gate_act="softmax")
    source.ignore("moe_norm_min")  # chosen scores never add up to as little
    source.ignore("num_nextn_predict_layers")  # for drafts only
    sizes, keys = source.sizes(tied=True), source.fields
    inner = source.integer("moe_intermediate_size", 1536, "expert_feed_forward_length")
    count, last, correction = sizes["num_layers"], -1, True
    first = source.integer("moe_layer_start_index", 1, "leading_dense_block_count", 0)
    if isinstance(source, GGUFSource):
        # A quotient of other sizes, which is not the shared experts' in every release.
        keys.ignore("expert_shared_feed_forward_length")
        correction = source.model.has_in_any("exp_probs_b.bias", count)
        key, counts = "interleave_moe_layer_step", source.expert_counts()
    else:
        last = keys.integer("moe_layer_end_index", -1)
        key, counts = "moe_layer_interval", _counts(keys)
    every = keys.integer(key, 1)
    if every < 1:
        raise keys.wrong(key, "a positive number")
    experts = ExpertsSpec(
        **counts,
        inner=inner,
        correction=correction,
        shared_inner=inner * source.integer("moe_num_shared_experts", 2, "expert_shared_count", 0),
    )
    plain, sparse = LayerSpec(), LayerSpec(feed_forward=FeedForwardSpec(experts=experts))
    layers = [
        sparse
        if first <= number <= (count if last == -1 else last) and (number + 1) % every == 0
        else plain
        for number in range(count)
    ]
    return decoder(source, "ernie4_5_moe", sizes, layers, eps=1e-5, theta=500_000.0)


def _counts(fields: Fields) -> dict[str, Any]:
    """How many experts there are, and how many a token has, in ERNIE's words or in those that
    other families of transformers have for it."""
    words = {
        "num_experts": fields.integer("moe_num_experts", 64),
        "num_experts_per_tok": fields.integer("moe_k", 6),
    }
    return hub.expert_counts(fields.completed(**words), "num_experts")


STATICS = "moe_statics.e_score_correction_bias"

ERNIE4_5_MOE = Family(
    "ernie4_5_moe",
    ("Ernie4_5_MoeForCausalLM",),
    "ERNIE 4.5 MoE",
    of_hub(_read),
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
    read_gguf=of_gguf(_read),
    gguf_names=replace(GGUF_NAMES, correction_row=True),
)
