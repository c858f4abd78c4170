"""Gemma, the first: GeGLU, norms by 1 + weight, embeddings scaled by the root of their size.

Source: Gemma team, "Gemma: open models based on Gemini research and technology", 2024.
"""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import FeedForwardSpec, LayerSpec, NormSpec


def _hub(fields: Fields) -> ModelConfig:
    sizes = hub.sizes(fields, default_head_dim=256, tied=True)
    fields.ignore("hidden_activation")  # says the same as hidden_act, or is null
    # The first releases say gelu and mean its approximation, as their trainers computed.
    hub.activation(fields, "gelu_tanh", "gelu", default="gelu_pytorch_tanh")
    return ModelConfig(
        architecture="gemma",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6), plus_one=True),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=(LayerSpec(feed_forward=FeedForwardSpec(activation="gelu_tanh")),),
        embedding_multiplier=sizes["hidden_size"] ** 0.5,
    )


def _gguf_gemma(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    return ModelConfig(
        architecture="gemma",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),  # 1 + weight is what the file has
        ropes=(model.rope(sizes["head_dim"]),),
        layers=(LayerSpec(feed_forward=FeedForwardSpec(activation="gelu_tanh")),),
        embedding_multiplier=sizes["hidden_size"] ** 0.5,
    )


GEMMA = Family("gemma", ("GemmaForCausalLM",), "Gemma", _hub, gguf="gemma", read_gguf=_gguf_gemma)
