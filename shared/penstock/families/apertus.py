"""Apertus: Llama with norms of each head's queries and keys, and a feed-forward without a gate,
whose activation has coefficients of each layer's own.

In safetensors these are tensors, `mlp.act_fn.alpha_p`, `alpha_n`, `beta` and `eps`, each of one
number. llama.cpp's converter writes them to a GGUF file's metadata, each as a list by layer.

Sources: Swiss AI Initiative, "Apertus: democratizing open and compliant LLMs for global language
environments", 2025; Huang and Schlag, "Deriving activation functions using integration", 2024.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.family import Family, TensorNames
from penstock.families.gguf_reading import GGUFMetadata
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import XIELU, AttentionSpec, FeedForwardSpec, LayerSpec, NormSpec


def _hub(fields: Fields) -> ModelConfig:
    said = fields.text("hidden_act", "xielu")
    if said != "xielu":
        raise UnsupportedModel(f"{fields.where}: hidden_act {said!r} is not served; xielu is")
    hub.only(fields, qk_norm=True, post_norm=False, mlp_bias=False)
    sizes, bias = hub.sizes(fields), fields.flag("attention_bias", False)
    layer = LayerSpec(
        attention=AttentionSpec(norm="head", qkv_bias=bias, output_bias=bias),
        feed_forward=FeedForwardSpec(activation="xielu", gated=False),
    )
    return ModelConfig(
        architecture="apertus",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-5)),
        ropes=(hub.rope(fields, sizes["head_dim"], theta=12_000_000.0),),
        layers=(layer,),
    )


def _gguf(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    attention = AttentionSpec(
        norm="head", qkv_bias=model.has("attn_q.bias"), output_bias=model.has("attn_output.bias")
    )
    layers = [
        LayerSpec(
            attention=attention,
            feed_forward=FeedForwardSpec(activation="xielu", xielu=each, gated=False),
        )
        for each in _coefficients(model, sizes["num_layers"])
    ]
    return ModelConfig(
        architecture="apertus",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=hub.shared(layers),
    )


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
    _hub,
    hub_names=TensorNames(NAMES),
    gguf="apertus",
    read_gguf=_gguf,
)
