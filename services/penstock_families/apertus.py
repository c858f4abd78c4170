"""Apertus: Llama with norms of each head's queries and keys, and a feed-forward without a gate,
whose activation has coefficients of each layer's own.

In safetensors these are tensors, `mlp.act_fn.alpha_p`, `alpha_n`, `beta` and `eps`, each of one
number. llama.cpp's converter writes them to a GGUF file's metadata, each as a list by layer.

Sources: Swiss AI Initiative, "Apertus: democratizing open and compliant LLMs for global language
environments", 2025; Huang and Schlag, "Deriving activation functions using integration", 2024.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.source import (
    OUTPUT,
    QUERY,
    GGUFSource,
    HubSource,
    Source,
    decoder,
    of_gguf,
    of_hub,
)
from penstock.families.tensor_names import TensorNames
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import XIELU, FeedForwardSpec, LayerSpec


def _read(source: Source) -> ModelConfig:
    if isinstance(source, HubSource):
        said = source.fields.text("hidden_act", "xielu")
        if said != "xielu":
            raise UnsupportedModel(
                f"{source.fields.where}: hidden_act {said!r} is not served; xielu is"
            )
    source.only(qk_norm=True, post_norm=False, mlp_bias=False)
    sizes = source.sizes()
    coefficients: list[XIELU | None] = [None]
    if isinstance(source, GGUFSource):
        coefficients = [*_coefficients(source.model, sizes["num_layers"])]
    attention = AttentionSpec(
        norm="head", qkv_bias=source.bias(QUERY), output_bias=source.bias(OUTPUT)
    )
    layers = [
        LayerSpec(
            attention=attention,
            feed_forward=FeedForwardSpec(activation="xielu", xielu=each, gated=False),
        )
        for each in coefficients
    ]
    return decoder(source, "apertus", sizes, layers, eps=1e-5, theta=12_000_000.0)


def _coefficients(model: GGUFMetadata, count: int) -> list[XIELU]:
    """Each layer's coefficients."""
    found = []
    for name in XIELU.__struct_fields__:
        key = f"xielu.{name}"
        numbers = model.keys.listed(key, float)
        if len(numbers) != count:
            raise model.keys.wrong(key, f"a list of {count} numbers")
        found.append(numbers)
    return [XIELU(*each) for each in zip(*found, strict=True)]


NAMES = {
    "attention_layernorm": "input_layernorm",
    "feedforward_layernorm": "post_attention_layernorm",
}
APERTUS = Family(
    "apertus",
    ("ApertusForCausalLM",),
    "Apertus",
    of_hub(_read),
    hub_names=TensorNames(NAMES),
    gguf="apertus",
    read_gguf=of_gguf(_read),
)
