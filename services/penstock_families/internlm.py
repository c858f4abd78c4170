"""InternLM 2 and 3: Llama, with biases where the config has them. InternLM 2 has one projection of
queries, keys and values, whose rows are put together by key and value head.

Source: Cai et al., "InternLM2 technical report", 2024; Shanghai AI Laboratory, "InternLM3", 2025.
"""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.llama import read_gguf
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import FeedForwardSpec, LayerSpec, NormSpec


def _hub2(fields: Fields) -> ModelConfig:
    bias = fields.flag("bias", False)
    return _model(fields, "internlm2", bias, FeedForwardSpec())


def _hub3(fields: Fields) -> ModelConfig:
    feed_forward = FeedForwardSpec(bias=fields.flag("bias", False))
    return _model(fields, "internlm3", fields.flag("qkv_bias", False), feed_forward)


def _model(fields: Fields, name: str, qkv_bias: bool, feed_forward: FeedForwardSpec) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes = hub.sizes(fields)
    attention = AttentionSpec(qkv_bias=qkv_bias, output_bias=fields.flag("bias", False))
    return ModelConfig(
        architecture=name,
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6)),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=(LayerSpec(attention=attention, feed_forward=feed_forward),),
    )


INTERNLM2 = Family(
    "internlm2",
    ("InternLM2ForCausalLM",),
    "InternLM 2",
    _hub2,
    hub_names=TensorNames(
        {
            "tok_embeddings": "embed_tokens",
            "output": "lm_head",
            "attention_norm": "input_layernorm",
            "attention.wo": "self_attn.o_proj",
            "ffn_norm": "post_attention_layernorm",
            "feed_forward.w1": "mlp.gate_proj",
            "feed_forward.w3": "mlp.up_proj",
            "feed_forward.w2": "mlp.down_proj",
        },
        by_kv_head={"attention.wqkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")},
    ),
    gguf="internlm2",
    read_gguf=read_gguf,
    gguf_names=TensorNames(pairs_adjacent=True),
)
INTERNLM3 = Family("internlm3", ("InternLM3ForCausalLM",), "InternLM 3", _hub3)
