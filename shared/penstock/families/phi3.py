"""Phi-3, Phi-3.5 and Phi-4, dense: Llama with fused projections, stretched rotary positions, and in
Phi-4-mini heads that rotate in part.

Source: Abdin et al., "Phi-3 technical report", 2024; "Phi-4 technical report", 2024.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.family import Family, TensorNames
from penstock.families.gguf_reading import GGUFMetadata
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import AttentionSpec, LayerSpec, NormSpec

FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes = hub.sizes(fields)
    fields.ignore("full_attn_mod", "interpolate_factor")  # of training
    window = hub.window(fields) if "sliding_window" in fields else None
    return ModelConfig(
        architecture="phi3",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-5)),
        ropes=(hub.rope(fields, sizes["head_dim"], share=1.0),),
        layers=(LayerSpec(attention=AttentionSpec(window=window)),),
    )


GGUF_FUSED = {
    "self_attn.qkv_proj": FUSED["self_attn.qkv_proj"],
    "mlp.up_proj": FUSED["mlp.gate_up_proj"],
}


def _gguf_phi3(model: GGUFMetadata) -> ModelConfig:
    if "rope_factors_long.weight" in model.tensors:
        raise UnsupportedModel(
            f"{model.keys.where}: rotary positions stretched by LongRoPE are served from "
            "safetensors only"
        )
    sizes = model.sizes()
    model.keys.ignore("rope.scaling.original_context_length")
    return ModelConfig(
        architecture="phi3",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=(LayerSpec(attention=AttentionSpec(window=model.window())),),
    )


PHI3 = Family(
    "phi3",
    ("Phi3ForCausalLM",),
    "Phi-3, Phi-4",
    _hub,
    hub_names=TensorNames(fused=FUSED),
    gguf="phi3",
    read_gguf=_gguf_phi3,
    gguf_names=TensorNames(fused=GGUF_FUSED),
)
