"""Llama 2 and 3, SmolLM, XVERSE and relatives: grouped-query attention, rotary positions and
SwiGLU; biases only where the config has them. Helium: the same with adjacent rotary pairs.

Sources: Touvron et al., "Llama 2", 2023; Grattafiori et al., "The Llama 3 herd of models", 2024;
Kyutai, "Helium 1", 2025.
"""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import Family, TensorNames
from penstock.families.gguf_reading import GGUFMetadata
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import (
    AttentionSpec,
    ExpertsSpec,
    FeedForwardSpec,
    LayerSpec,
    NormSpec,
)


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes, bias = hub.sizes(fields), fields.flag("attention_bias", False)
    hub.no_windows(fields, sizes["num_layers"])
    layer = LayerSpec(
        attention=AttentionSpec(qkv_bias=bias, output_bias=bias),
        feed_forward=FeedForwardSpec(bias=fields.flag("mlp_bias", False)),
    )
    return ModelConfig(
        architecture="llama",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6)),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=(layer,),
    )


def read_gguf(model: GGUFMetadata) -> ModelConfig:
    """The config in a file of Llama, or of Mistral, whose layers are the same; with experts, the
    file is of Mixtral, or of a mixture that was made of models of either."""
    sizes, experts = model.sizes(), None
    if model.keys.integer("expert_count", 0):
        inner = model.keys.integer("expert_feed_forward_length", sizes["intermediate_size"])
        experts = ExpertsSpec(**model.expert_counts(), inner=inner)
    else:
        model.keys.ignore("expert_used_count")
    layer = LayerSpec(
        attention=AttentionSpec(
            qkv_bias=model.has("attn_q.bias"), output_bias=model.has("attn_output.bias")
        ),
        feed_forward=FeedForwardSpec(bias=model.has("ffn_up.bias"), experts=experts),
    )
    return ModelConfig(
        architecture="mixtral" if experts else "llama",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=(layer,),
    )


LLAMA = Family(
    "llama",
    ("LlamaForCausalLM", "XverseForCausalLM"),
    "Llama 2 and 3, SmolLM",
    _hub,
    gguf="llama",
    read_gguf=read_gguf,
    gguf_names=TensorNames(pairs_adjacent=True),
)


def _hub_helium(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes = hub.sizes(fields, default_head_dim=128)
    layer = LayerSpec(
        attention=AttentionSpec(qkv_bias=fields.flag("attention_bias", False)),
        feed_forward=FeedForwardSpec(bias=fields.flag("mlp_bias", False)),
    )
    return ModelConfig(
        architecture="helium",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-8)),
        ropes=(hub.rope(fields, sizes["head_dim"], theta=100_000.0),),
        layers=(layer,),
    )


HELIUM = Family(
    "helium",
    ("HeliumForCausalLM",),
    "Helium",
    _hub_helium,
    hub_names=TensorNames(pairs_adjacent=True),
)
