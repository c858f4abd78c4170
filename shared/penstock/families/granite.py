"""Granite 3, dense: Llama with multipliers of embeddings, scores, residuals and logits.

Source: Granite team, "Granite 3.0 language models", 2024; Yang et al., "Tensor programs V", 2022.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.formats.fields import Fields
from penstock.layer_spec import AttentionSpec, FeedForwardSpec, LayerSpec, NormSpec
from penstock.model_config import ModelConfig


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes, bias = hub.sizes(fields), fields.flag("attention_bias", False)
    layer = LayerSpec(
        attention=AttentionSpec(
            scale=fields.number("attention_multiplier", 1.0), qkv_bias=bias, output_bias=bias
        ),
        feed_forward=FeedForwardSpec(bias=fields.flag("mlp_bias", False)),
        residual_multiplier=fields.number("residual_multiplier", 1.0),
    )
    scaling = fields.number("logits_scaling", 1.0)
    if scaling == 0:
        raise UnsupportedModel(f"{fields.where}: logits_scaling is 0; logits are divided by it")
    return ModelConfig(
        architecture="granite",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6)),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=(layer,),
        embedding_multiplier=fields.number("embedding_multiplier", 1.0),
        logits_multiplier=1.0 / scaling,
    )


GRANITE = Family("granite", ("GraniteForCausalLM",), "Granite 3", _hub)
