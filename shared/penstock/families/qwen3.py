"""Qwen 3, dense: Llama with queries and keys normalised head by head, and a head size of its own.

Source: Yang et al., "Qwen3 technical report", 2025.
"""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import AttentionSpec, LayerSpec, NormSpec, RopeSpec


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes, bias = hub.sizes(fields, default_head_dim=128), fields.flag("attention_bias", False)
    return ModelConfig(
        architecture="qwen3",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6)),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=hub.shared(
            LayerSpec(
                attention=AttentionSpec(window=window, norm="head", qkv_bias=bias, output_bias=bias)
            )
            for window in hub.windows_behind(fields, sizes["num_layers"])
        ),
    )


def rope_behind_a_tower(model: GGUFMetadata, head_dim: int) -> RopeSpec:
    """The rotation in a file of Qwen3, or of Qwen3-VL's decoder. How many layers get something of
    the tower's, as the latter says, isn't used: the tower says which."""
    model.keys.ignore("n_deepstack_layers")
    return model.with_sections(model.rope(head_dim), interleaved=True)


def _gguf(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    attention = AttentionSpec(
        norm="head",
        qkv_bias="blk.0.attn_q.bias" in model.tensors,
        output_bias="blk.0.attn_output.bias" in model.tensors,
    )
    return ModelConfig(
        architecture="qwen3",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(rope_behind_a_tower(model, sizes["head_dim"]),),
        layers=(LayerSpec(attention=attention),),
    )


QWEN3 = Family(
    "qwen3",
    ("Qwen3ForCausalLM",),
    "Qwen3",
    _hub,
    gguf="qwen3",
    gguf_also=("qwen3vl",),
    read_gguf=_gguf,
)
