"""Granite 3, dense and with experts: Llama with multipliers of embeddings, scores, residuals and
logits.

Source: Granite team, "Granite 3.0 language models", 2024; Yang et al., "Tensor programs V", 2022.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.family import Family, TensorNames
from penstock.families.gguf_reading import GGUFMetadata
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import (
    AttentionSpec,
    ExpertsSpec,
    FeedForwardSpec,
    LayerSpec,
    NormSpec,
)


def _hub(fields: Fields) -> ModelConfig:
    sizes = hub.sizes(fields)
    feed_forward = FeedForwardSpec(bias=fields.flag("mlp_bias", False))
    return model_of(fields, "granite", sizes, feed_forward)


def _hub_moe(fields: Fields) -> ModelConfig:
    sizes = hub.sizes(fields)
    counts = hub.expert_counts(fields, "num_local_experts")
    experts = ExpertsSpec(**counts, inner=sizes["intermediate_size"])
    return model_of(fields, "granitemoe", sizes, FeedForwardSpec(experts=experts))


def model_of(
    fields: Fields, name: str, sizes: dict[str, Any], feed_forward: FeedForwardSpec
) -> ModelConfig:
    """Reads what all Granite models have, whose layers are alike."""
    hub.activation(fields, "silu")
    bias = fields.flag("attention_bias", False)
    layer = LayerSpec(
        attention=AttentionSpec(
            scale=fields.number("attention_multiplier", 1.0), qkv_bias=bias, output_bias=bias
        ),
        feed_forward=feed_forward,
        residual_multiplier=fields.number("residual_multiplier", 1.0),
    )
    scaling = fields.number("logits_scaling", 1.0)
    if scaling == 0:
        raise UnsupportedModel(f"{fields.where}: logits_scaling is 0; logits are divided by it")
    return ModelConfig(
        architecture=name,
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6)),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=(layer,),
        embedding_multiplier=fields.number("embedding_multiplier", 1.0),
        logits_multiplier=1.0 / scaling,
    )


MOE_NAMES = TensorNames(
    {"block_sparse_moe.router.layer": "mlp.router"},
    stacked={
        "block_sparse_moe.input_linear": ("mlp.experts.*.gate_proj", "mlp.experts.*.up_proj"),
        "block_sparse_moe.output_linear": ("mlp.experts.*.down_proj",),
    },
)


def _gguf_granite(model: GGUFMetadata) -> ModelConfig:
    return gguf_model(model, "granite")


def gguf_model(model: GGUFMetadata, name: str) -> ModelConfig:
    """Reads what all Granite models have, whose layers are alike."""
    sizes, keys = model.sizes(), model.keys
    layer = LayerSpec(
        attention=AttentionSpec(
            scale=keys.number("attention.scale"),
            qkv_bias=model.has("attn_q.bias"),
            output_bias=model.has("attn_output.bias"),
        ),
        feed_forward=FeedForwardSpec(bias=model.has("ffn_up.bias")),
        residual_multiplier=keys.number("residual_scale", 1.0),
    )
    return ModelConfig(
        architecture=name,
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=(layer,),
        embedding_multiplier=keys.number("embedding_scale", 1.0),
        logits_multiplier=1.0 / keys.number("logit_scale", 1.0),
    )


GRANITE = Family(
    "granite",
    ("GraniteForCausalLM",),
    "Granite 3",
    _hub,
    gguf="granite",
    read_gguf=_gguf_granite,
    gguf_names=TensorNames(pairs_adjacent=True),
)
GRANITE_MOE = Family(
    "granitemoe", ("GraniteMoeForCausalLM",), "Granite 3 MoE", _hub_moe, hub_names=MOE_NAMES
)
