"""MiniMax M2: experts chosen by corrected sigmoid scores, norms over all queries and all keys, and
heads that rotate in half.

Source: MiniMax, "MiniMax-M2", 2025.
"""

from __future__ import annotations

import math

from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.mistral import MIXTRAL_MODULES
from penstock.families.qwen3 import GGUF_NAMES
from penstock.families.source import GGUFSource, Source, decoder, of_gguf, of_hub
from penstock.families.tensor_names import TensorNames
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec

SIGMOID = 2
"""GGUF's number for routers that make scores of their products by a sigmoid."""

NAMES = TensorNames(
    {**MIXTRAL_MODULES, "block_sparse_moe.e_score_correction_bias": "mlp.router.correction"},
    layers_for_drafts=True,
)


def _read(source: Source) -> ModelConfig:
    source.activation("silu")
    sizes = source.sizes()
    source.ignore("router_jitter_noise")  # of training
    source.ignore("use_mtp", "num_mtp_modules", "mtp_transformer_layers")  # for drafts only
    source.only(
        attn_type_list=[1] * sizes["num_layers"],
        qk_norm_type="per_layer",
        scoring_func="sigmoid",
        use_qk_norm=True,
        use_routing_bias=True,
    )
    head, inner, share = sizes["head_dim"], sizes["intermediate_size"], None
    if isinstance(source, GGUFSource):
        hub.only(source.fields, expert_gating_func=SIGMOID)
        inner = source.fields.integer("expert_feed_forward_length")
    else:
        # The next larger number, as the quotient may be rounded down, and so many numbers rotate
        # as the product with the head's size has when it is rounded down.
        turning = source.integer("rotary_dim", head)
        share = math.nextafter(turning / head, math.inf)
    experts = ExpertsSpec(
        **source.expert_counts("num_local_experts"),
        inner=inner,
        router="sigmoid",
        correction=True,
    )
    layer = LayerSpec(
        attention=AttentionSpec(norm="whole"), feed_forward=FeedForwardSpec(experts=experts)
    )
    return decoder(source, "minimax_m2", sizes, [layer], theta=5_000_000.0, share=share)


MINIMAX_M2 = Family(
    "minimax_m2",
    ("MiniMaxM2ForCausalLM",),
    "MiniMax M2",
    of_hub(_read),
    hub_names=NAMES,
    gguf="minimax-m2",
    read_gguf=of_gguf(_read),
    gguf_names=GGUF_NAMES,
    unserved=frozenset({"shared_intermediate_size"}),  # Of the makers' own code.
)
