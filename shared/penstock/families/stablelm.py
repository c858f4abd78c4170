"""StableLM 2 and StableLM 3B: layer norms, and heads of which a quarter rotates.

Source: Bellagente et al., "Stable LM 2 1.6B technical report", 2024.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import AttentionSpec, LayerSpec, NormSpec


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes = hub.sizes(fields)
    if fields.flag("qk_layernorm", False):
        raise UnsupportedModel(f"{fields.where}: qk_layernorm is true; only false is served")
    parallel = fields.flag("use_parallel_residual", False)
    layer = LayerSpec(
        attention=AttentionSpec(qkv_bias=fields.flag("use_qkv_bias", False)),
        order="parallel" if parallel else "pre",
    )
    return ModelConfig(
        architecture="stablelm",
        **sizes,
        norm=NormSpec(kind="layer", eps=fields.number("layer_norm_eps", 1e-5), bias=True),
        ropes=(hub.rope(fields, sizes["head_dim"], share=0.25),),
        layers=(layer,),
    )


def _gguf_stablelm(model: GGUFMetadata) -> ModelConfig:
    sizes, keys = model.sizes(), model.keys
    parallel = keys.flag("use_parallel_residual", False)
    layer = LayerSpec(
        attention=AttentionSpec(qkv_bias=model.has("attn_q.bias")),
        order="parallel" if parallel else "pre",
    )
    return ModelConfig(
        architecture="stablelm",
        **sizes,
        norm=NormSpec(kind="layer", eps=model.layer_norm_eps(), bias=True),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=(layer,),
    )


STABLELM = Family(
    "stablelm",
    ("StableLmForCausalLM",),
    "StableLM",
    _hub,
    gguf="stablelm",
    read_gguf=_gguf_stablelm,
)
