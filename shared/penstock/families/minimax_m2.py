"""MiniMax M2: experts chosen by corrected sigmoid scores, norms over all queries and all keys, and
heads that rotate in half.

Source: MiniMax, "MiniMax-M2", 2025.
"""

from __future__ import annotations

import math
from typing import Any

from penstock.families import hub_reading as hub
from penstock.families.family import Family, TensorNames
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.mistral import MIXTRAL_MODULES
from penstock.families.qwen3 import GGUF_NAMES
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import (
    AttentionSpec,
    ExpertsSpec,
    FeedForwardSpec,
    LayerSpec,
    NormSpec,
)

SIGMOID = 2
"""GGUF's number for routers that make scores of their products by a sigmoid."""

NAMES = TensorNames(
    {**MIXTRAL_MODULES, "block_sparse_moe.e_score_correction_bias": "mlp.router.correction"},
    layers_for_drafts=True,
)


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes = hub.sizes(fields)
    fields.ignore("router_jitter_noise")  # of training
    fields.ignore("use_mtp", "num_mtp_modules", "mtp_transformer_layers")  # for drafts only
    hub.only(
        fields,
        attn_type_list=[1] * sizes["num_layers"],
        qk_norm_type="per_layer",
        scoring_func="sigmoid",
        use_qk_norm=True,
        use_routing_bias=True,
    )
    head = sizes["head_dim"]
    # The next larger number, as the quotient may be rounded down, and so many numbers rotate as
    # the product with the head's size has when it is rounded down.
    share = math.nextafter(fields.integer("rotary_dim", head) / head, math.inf)
    return ModelConfig(
        architecture="minimax_m2",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6)),
        ropes=(hub.rope(fields, head, theta=5_000_000.0, share=share),),
        layers=(
            _layer(hub.expert_counts(fields, "num_local_experts"), sizes["intermediate_size"]),
        ),
    )


def _gguf_minimax_m2(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    hub.only(model.keys, expert_gating_func=SIGMOID)
    inner = model.keys.integer("expert_feed_forward_length")
    return ModelConfig(
        architecture="minimax_m2",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=(_layer(model.expert_counts(), inner),),
    )


def _layer(counts: dict[str, Any], inner: int) -> LayerSpec:
    experts = ExpertsSpec(**counts, inner=inner, router="sigmoid", correction=True)
    return LayerSpec(
        attention=AttentionSpec(norm="whole"), feed_forward=FeedForwardSpec(experts=experts)
    )


MINIMAX_M2 = Family(
    "minimax_m2",
    ("MiniMaxM2ForCausalLM",),
    "MiniMax M2",
    _hub,
    hub_names=NAMES,
    gguf="minimax-m2",
    read_gguf=_gguf_minimax_m2,
    gguf_names=GGUF_NAMES,
    unserved=frozenset({"shared_intermediate_size"}),  # Of the makers' own code.
)
