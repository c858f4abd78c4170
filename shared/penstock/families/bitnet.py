"""BitNet b1.58: Llama with squared relu, and a norm before each product that leads back to the
residual, so that what ternary weights are multiplied with has one scale.

Weights that are ternary in the file are read as `quantization_config` says, of any family (see
penstock.prepare.quantised). llama.cpp's converter rounds a file's weights to three values itself,
and writes a file without saying its activation, which is then silu.

Source: Ma et al., "The era of 1-bit LLMs: all large language models are in 1.58 bits", 2024;
Microsoft, "BitNet b1.58 2B4T technical report", 2025.
"""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import AttentionSpec, FeedForwardSpec, LayerSpec, NormSpec

ACTIVATIONS: tuple[hub.Activation, ...] = ("relu2", "silu")


def _layer(activation: hub.Activation, *, bias: bool) -> LayerSpec:
    return LayerSpec(
        attention=AttentionSpec(qkv_bias=bias, output_bias=bias, sub_norm=True),
        feed_forward=FeedForwardSpec(activation=activation, sub_norm=True),
    )


def _hub(fields: Fields) -> ModelConfig:
    sizes, bias = hub.sizes(fields), fields.flag("attention_bias", False)
    activation = hub.activation(fields, *ACTIVATIONS, default="relu2")
    return ModelConfig(
        architecture="bitnet",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-5)),
        ropes=(hub.rope(fields, sizes["head_dim"], theta=500_000.0),),
        layers=(_layer(activation, bias=bias),),
    )


def _gguf(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    activation = hub.activation(model.keys, *ACTIVATIONS, key="hidden_activation")
    return ModelConfig(
        architecture="bitnet",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=(_layer(activation, bias=False),),
    )


BITNET = Family(
    "bitnet",
    ("BitNetForCausalLM",),
    "BitNet b1.58",
    _hub,
    gguf="bitnet",
    read_gguf=_gguf,
)
