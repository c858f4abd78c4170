"""ERNIE 4.5, dense: Llama with adjacent rotary pairs. Source: Baidu, "ERNIE 4.5", 2025."""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import Family, TensorNames
from penstock.families.gguf_reading import GGUFMetadata
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import AttentionSpec, FeedForwardSpec, LayerSpec, NormSpec


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes = hub.sizes(fields, default_head_dim=128, tied=True)
    bias = fields.flag("use_bias", False)
    layer = LayerSpec(
        attention=AttentionSpec(qkv_bias=bias, output_bias=bias),
        feed_forward=FeedForwardSpec(bias=bias),
    )
    return ModelConfig(
        architecture="ernie4_5",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-5)),
        ropes=(hub.rope(fields, sizes["head_dim"], theta=500_000.0),),
        layers=(layer,),
    )


def _gguf_ernie4_5(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    bias = model.has("attn_q.bias")
    layer = LayerSpec(
        attention=AttentionSpec(qkv_bias=bias, output_bias=model.has("attn_output.bias")),
        feed_forward=FeedForwardSpec(bias=model.has("ffn_up.bias")),
    )
    return ModelConfig(
        architecture="ernie4_5",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=(layer,),
    )


ERNIE4_5 = Family(
    "ernie4_5",
    ("Ernie4_5ForCausalLM",),
    "ERNIE 4.5",
    _hub,
    hub_names=TensorNames(pairs_adjacent=True),
    gguf="ernie4_5",
    read_gguf=_gguf_ernie4_5,
    gguf_names=TensorNames(pairs_adjacent=True),
)
