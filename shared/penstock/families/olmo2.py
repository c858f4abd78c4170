"""OLMo 2 and 3: norms after attention and feed-forward only, and over all queries and all keys; in
OLMo 3 three of four layers in a window. OLMoE: experts without normalised weights, norms over all
queries and all keys. FlexOlmo: OLMo 2 with such experts.

Sources: OLMo team, "2 OLMo 2 furious", 2025; "OLMo 3", 2025; Muennighoff et al., "OLMoE: open
mixture-of-experts language models", 2024; Shi et al., "FlexOlmo: open language models for flexible
data use", 2025.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.families import hub_reading as hub
from penstock.families.family import Family, TensorNames
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.molmo2 import FUSED as FUSED_IN_MOLMO2
from penstock.families.molmo2 import NAMES_O as IN_MOLMO2
from penstock.families.qwen3 import GGUF_NAMES
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import (
    AttentionSpec,
    ExpertsSpec,
    FeedForwardSpec,
    LayerSpec,
    NormSpec,
)

NAMES = TensorNames(
    {
        "post_attention_layernorm": "attention_output_norm",
        "post_feedforward_layernorm": "feed_forward_output_norm",
    }
)


def _layer(window: int | None, rope: int, *, bias: bool) -> LayerSpec:
    attention = AttentionSpec(
        window=window, rope=rope, norm="whole", qkv_bias=bias, output_bias=bias
    )
    return LayerSpec(attention=attention, order="post")


def _hub2(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes, bias = hub.sizes(fields), fields.flag("attention_bias", False)
    return ModelConfig(
        architecture="olmo2",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-5)),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=(_layer(None, 0, bias=bias),),
    )


def _hub3(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes, bias = hub.sizes(fields), fields.flag("attention_bias", False)
    count, theta = sizes["num_layers"], fields.number("rope_theta", 500_000.0)
    window = hub.window(fields)
    layers = [
        _layer(window, 1, bias=bias) if kind == hub.SLIDING else _layer(None, 0, bias=bias)
        for kind in hub.layer_kinds(fields, count, hub.every_nth_full(4, count))
    ]
    # What stretches the context holds for the layers that see all of it.
    ropes = (
        hub.rope(fields, sizes["head_dim"], kind=hub.FULL, theta=500_000.0),
        hub.local_rope(fields, sizes["head_dim"], theta),
    )
    return ModelConfig(
        architecture="olmo3",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-5)),
        ropes=ropes,
        layers=hub.shared(layers),
    )


def _gguf_olmo2(model: GGUFMetadata) -> ModelConfig:
    """OLMo 3's files say the same as OLMo 2's, and that layers have windows."""
    sizes = model.sizes()
    rope = model.rope(sizes["head_dim"])
    plain = ModelConfig(
        architecture="olmo2",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(rope,),
        layers=(_layer(None, 0, bias=False),),
    )
    if "attention.sliding_window" not in model.keys:
        return plain
    local = model.rope(sizes["head_dim"], theta=rope.theta, local=True)
    window = model.window()
    layers = [
        _layer(window, 1, bias=False) if kind == hub.SLIDING else _layer(None, 0, bias=False)
        for kind in model.layer_kinds()
    ]
    return msgspec.structs.replace(
        plain, architecture="olmo3", ropes=(rope, local), layers=hub.shared(layers)
    )


OLMO2 = Family(
    "olmo2",
    ("Olmo2ForCausalLM",),
    "OLMo 2",
    _hub2,
    hub_names=NAMES,
    gguf="olmo2",
    read_gguf=_gguf_olmo2,
)
OLMO3 = Family(
    "olmo3",
    ("Olmo3ForCausalLM",),
    "OLMo 3",
    _hub3,
    hub_names=TensorNames({**NAMES.modules, **IN_MOLMO2}, FUSED_IN_MOLMO2),
    gguf="olmo2",
    read_gguf=_gguf_olmo2,
)


def _hub_olmoe(fields: Fields) -> ModelConfig:
    return _sparse_model(fields, "olmoe", eps=1e-5)


def _hub_flex(fields: Fields) -> ModelConfig:
    return _sparse_model(fields, "flex_olmo", eps=1e-6, theta=500_000.0, order="post")


def _sparse_model(
    fields: Fields,
    name: str,
    *,
    eps: float,
    theta: float = 10_000.0,
    order: Literal["pre", "post"] = "pre",
) -> ModelConfig:
    """Reads a model with experts in all layers. eps, theta: where config.json doesn't say."""
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
        order=order,
    )
    return ModelConfig(
        architecture=name,
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", eps)),
        ropes=(hub.rope(fields, sizes["head_dim"], theta=theta),),
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
    _hub_olmoe,
    hub_names=TensorNames({"mlp.gate": "mlp.router"}),
    gguf="olmoe",
    read_gguf=_gguf_olmoe,
    gguf_names=GGUF_NAMES,
    unserved=frozenset({"clip_qkv"}),
)
FLEX_OLMO = Family(
    "flex_olmo",
    ("FlexOlmoForCausalLM",),
    "FlexOlmo",
    _hub_flex,
    hub_names=TensorNames({**NAMES.modules, "mlp.gate": "mlp.router"}),
)
