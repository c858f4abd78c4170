"""Seed-OSS: Llama with biases on queries, keys and values. Source: ByteDance Seed, 2025."""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import AttentionSpec, FeedForwardSpec, LayerSpec, NormSpec


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes = hub.sizes(fields, default_head_dim=128)
    layer = LayerSpec(
        attention=AttentionSpec(
            qkv_bias=fields.flag("attention_bias", True),
            output_bias=fields.flag("attention_out_bias", False),
        ),
        feed_forward=FeedForwardSpec(bias=fields.flag("mlp_bias", False)),
    )
    return ModelConfig(
        architecture="seed_oss",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6)),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=(layer,),
    )


SEED_OSS = Family("seed_oss", ("SeedOssForCausalLM",), "Seed-OSS", _hub)
