"""StarCoder2: layer norms, a feed-forward without a gate, biases everywhere, and a sliding window.

Source: Lozhkov et al., "StarCoder 2 and The Stack v2", 2024.
"""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import Family, TensorNames
from penstock.families.gguf_reading import GGUFMetadata
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import AttentionSpec, FeedForwardSpec, LayerSpec, NormSpec


def _hub(fields: Fields) -> ModelConfig:
    act = hub.activation(fields, "gelu_tanh", "gelu", default="gelu_pytorch_tanh")
    sizes, bias = hub.sizes(fields, tied=True), fields.flag("use_bias", True)
    window = hub.window(fields) if "sliding_window" in fields else None
    layer = LayerSpec(
        attention=AttentionSpec(window=window, qkv_bias=bias, output_bias=bias),
        feed_forward=FeedForwardSpec(activation=act, gated=False, bias=bias),
    )
    fields.ignore("mlp_type", "norm_type")  # default and layer_norm, in all releases
    return ModelConfig(
        architecture="starcoder2",
        **sizes,
        norm=NormSpec(kind="layer", eps=fields.number("norm_epsilon", 1e-5), bias=True),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=(layer,),
    )


def _gguf_starcoder2(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    layer = LayerSpec(
        attention=AttentionSpec(
            qkv_bias=model.has("attn_q.bias"), output_bias=model.has("attn_output.bias")
        ),
        feed_forward=FeedForwardSpec(
            activation="gelu_tanh", gated=False, bias=model.has("ffn_up.bias")
        ),
    )
    return ModelConfig(
        architecture="starcoder2",
        **sizes,
        norm=NormSpec(kind="layer", eps=model.layer_norm_eps(), bias=True),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=(layer,),
    )


STARCODER2 = Family(
    "starcoder2",
    ("Starcoder2ForCausalLM",),
    "StarCoder2",
    _hub,
    hub_names=TensorNames({"mlp.c_fc": "mlp.up_proj", "mlp.c_proj": "mlp.down_proj"}),
    gguf="starcoder2",
    read_gguf=_gguf_starcoder2,
)
