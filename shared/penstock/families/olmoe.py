"""OLMoE: experts without normalised weights, norms over all queries and all keys.

Source: Muennighoff et al., "OLMoE: open mixture-of-experts language models", 2024.
"""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import Family, TensorNames
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.qwen3_moe import GGUF_NAMES
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
    experts = ExpertsSpec(
        **hub.expert_counts(fields, "num_experts", "num_local_experts"),
        inner=sizes["intermediate_size"],
        normalised=fields.flag("norm_topk_prob", False),
    )
    layer = LayerSpec(
        attention=AttentionSpec(norm="whole", qkv_bias=bias, output_bias=bias),
        feed_forward=FeedForwardSpec(experts=experts),
    )
    return ModelConfig(
        architecture="olmoe",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-5)),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=(layer,),
    )


def _gguf_olmoe(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    experts = ExpertsSpec(
        **model.expert_counts(), inner=sizes["intermediate_size"], normalised=False
    )
    layer = LayerSpec(
        attention=AttentionSpec(norm="whole"), feed_forward=FeedForwardSpec(experts=experts)
    )
    return ModelConfig(
        architecture="olmoe",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=(layer,),
    )


OLMOE = Family(
    "olmoe",
    ("OlmoeForCausalLM",),
    "OLMoE",
    _hub,
    hub_names=TensorNames({"mlp.gate": "mlp.router"}),
    gguf="olmoe",
    read_gguf=_gguf_olmoe,
    gguf_names=GGUF_NAMES,
)
