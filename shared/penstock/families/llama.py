"""Llama 2 and 3, SmolLM and relatives: grouped-query attention, rotary positions and SwiGLU; biases
only where the config has them.

Source: Touvron et al., "Llama 2", 2023; Grattafiori et al., "The Llama 3 herd of models", 2024.
"""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import Family, TensorNames
from penstock.families.gguf_reading import GGUFMetadata
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import AttentionSpec, FeedForwardSpec, LayerSpec, NormSpec


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


def _gguf(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    layer = LayerSpec(
        attention=AttentionSpec(
            qkv_bias="blk.0.attn_q.bias" in model.tensors,
            output_bias="blk.0.attn_output.bias" in model.tensors,
        ),
        feed_forward=FeedForwardSpec(bias="blk.0.ffn_up.bias" in model.tensors),
    )
    return ModelConfig(
        architecture="llama",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=(layer,),
    )


LLAMA = Family(
    "llama",
    ("LlamaForCausalLM",),
    "Llama 2 and 3, SmolLM",
    _hub,
    gguf="llama",
    read_gguf=_gguf,
    gguf_names=TensorNames(pairs_adjacent=True),
)
