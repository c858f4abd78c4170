"""StarCoder2: layer norms, a feed-forward without a gate, biases everywhere, and a sliding window.

Source: Lozhkov et al., "StarCoder 2 and The Stack v2", 2024.
"""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import Family, TensorNames
from penstock.formats.fields import Fields
from penstock.layer_spec import AttentionSpec, FeedForwardSpec, LayerSpec, NormSpec
from penstock.model_config import ModelConfig


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


STARCODER2 = Family(
    "starcoder2",
    ("Starcoder2ForCausalLM",),
    "StarCoder2",
    _hub,
    hub_names=TensorNames({"mlp.c_fc": "mlp.up_proj", "mlp.c_proj": "mlp.down_proj"}),
)
