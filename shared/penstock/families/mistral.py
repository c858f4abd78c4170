"""Mistral 7B and its successors: Llama, of which some releases attend within a sliding window.

Their GGUF files say that they are Llama's. Source: Jiang et al., "Mistral 7B", 2023.
"""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import AttentionSpec, LayerSpec, NormSpec


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes = hub.sizes(fields)
    window = hub.window(fields) if "sliding_window" in fields else None
    kinds = [hub.FULL if window is None else hub.SLIDING] * sizes["num_layers"]
    layers = [
        LayerSpec(attention=AttentionSpec(window=window if kind == hub.SLIDING else None))
        for kind in hub.layer_kinds(fields, sizes["num_layers"], kinds)
    ]
    return ModelConfig(
        architecture="mistral",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6)),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=hub.shared(layers),
    )


MISTRAL = Family(
    "mistral",
    (
        "MistralForCausalLM",
        "MinistralForCausalLM",
        "Ministral3ForCausalLM",
        "Mistral3ForConditionalGeneration",
    ),
    "Mistral, Ministral, Ministral 3, Mistral Small 3",
    _hub,
)
