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
from penstock.families.source import OUTPUT, QUERY, GGUFSource, Source, decoder, of_gguf, of_hub
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import FeedForwardSpec, LayerSpec

ACTIVATIONS: tuple[hub.Activation, ...] = ("relu2", "silu")


def _read(source: Source) -> ModelConfig:
    if isinstance(source, GGUFSource):
        activation = hub.activation(source.fields, *ACTIVATIONS, key="hidden_activation")
    else:
        activation = source.activation(*ACTIVATIONS, default="relu2")
    layer = LayerSpec(
        attention=AttentionSpec(
            qkv_bias=source.bias(QUERY), output_bias=source.bias(OUTPUT), sub_norm=True
        ),
        feed_forward=FeedForwardSpec(activation=activation, sub_norm=True),
    )
    return decoder(source, "bitnet", source.sizes(), [layer], eps=1e-5, theta=500_000.0)


BITNET = Family(
    "bitnet",
    ("BitNetForCausalLM",),
    "BitNet b1.58",
    of_hub(_read),
    gguf="bitnet",
    read_gguf=of_gguf(_read),
)
