"""GLM-4, dense: heads that rotate in part, with adjacent pairs; the releases of April 2025 have
norms after attention and feed-forward, too.

Source: GLM team, "ChatGLM", 2024; the model cards of GLM-4-0414.
"""

from __future__ import annotations

from typing import Literal

from penstock.families import hub_reading as hub
from penstock.families.family import Family, TensorNames
from penstock.families.gguf_reading import GGUFMetadata
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import AttentionSpec, LayerSpec, NormSpec

NAMES = TensorNames(
    {
        "post_self_attn_layernorm": "attention_output_norm",
        "post_mlp_layernorm": "feed_forward_output_norm",
    },
    {"mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj")},
    pairs_adjacent=True,
)


def _model(fields: Fields, name: str, order: Literal["pre", "sandwich"]) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes = hub.sizes(fields, default_head_dim=128)
    attention = AttentionSpec(qkv_bias=fields.flag("attention_bias", True))
    return ModelConfig(
        architecture=name,
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1.5625e-07)),
        ropes=(hub.rope(fields, sizes["head_dim"], share=0.5),),
        layers=(LayerSpec(attention=attention, order=order),),
    )


def _hub(fields: Fields) -> ModelConfig:
    return _model(fields, "glm", "pre")


def _hub4(fields: Fields) -> ModelConfig:
    return _model(fields, "glm4", "sandwich")


GLM = Family("glm", ("GlmForCausalLM",), "GLM-4", _hub, hub_names=NAMES)
GGUF_NAMES = TensorNames(
    fused={"mlp.up_proj": ("mlp.gate_proj", "mlp.up_proj")}, pairs_adjacent=True
)


def _gguf_glm4(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    attention = AttentionSpec(qkv_bias=model.has("attn_q.bias", "attn_qkv.bias"))
    return ModelConfig(
        architecture="glm4",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=(LayerSpec(attention=attention, order="sandwich"),),
    )


GLM4 = Family(
    "glm4",
    ("Glm4ForCausalLM",),
    "GLM-4-0414",
    _hub4,
    hub_names=NAMES,
    gguf="glm4",
    read_gguf=_gguf_glm4,
    gguf_names=GGUF_NAMES,
)
