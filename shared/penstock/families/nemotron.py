"""Nemotron-4 and Minitron: layer norms by 1 + weight, squared relu without a gate, and heads of
which half rotates.

Source: Parmar et al., "Nemotron-4 15B technical report", 2024.
"""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import AttentionSpec, FeedForwardSpec, LayerSpec, NormSpec


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "relu2", default="relu2")
    sizes, bias = hub.sizes(fields), fields.flag("attention_bias", False)
    fields.ignore("kv_channels", "rope_percent")  # say the same as head_dim, partial_rotary_factor
    layer = LayerSpec(
        attention=AttentionSpec(qkv_bias=bias, output_bias=bias),
        feed_forward=FeedForwardSpec(
            activation="relu2", gated=False, bias=fields.flag("mlp_bias", False)
        ),
    )
    return ModelConfig(
        architecture="nemotron",
        **sizes,
        norm=NormSpec(kind="layer", eps=fields.number("norm_eps", 1e-5), plus_one=True, bias=True),
        ropes=(hub.rope(fields, sizes["head_dim"], share=0.5),),
        layers=(layer,),
    )


def _gguf_nemotron(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    layer = LayerSpec(
        attention=AttentionSpec(
            qkv_bias=model.has("attn_q.bias"), output_bias=model.has("attn_output.bias")
        ),
        feed_forward=FeedForwardSpec(
            activation="relu2", gated=False, bias=model.has("ffn_up.bias")
        ),
    )
    return ModelConfig(
        architecture="nemotron",
        **sizes,
        norm=NormSpec(kind="layer", eps=model.layer_norm_eps(), bias=True),  # 1 + weight is there
        ropes=(model.rope(sizes["head_dim"]),),
        layers=(layer,),
    )


NEMOTRON = Family(
    "nemotron",
    ("NemotronForCausalLM",),
    "Nemotron-4, Minitron",
    _hub,
    gguf="nemotron",
    read_gguf=_gguf_nemotron,
)
