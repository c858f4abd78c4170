"""OLMo 2 and 3: norms after attention and feed-forward only, and over all queries and all keys; in
OLMo 3 three of four layers in a window. OLMoE: experts without normalised weights, norms over all
queries and all keys. FlexOlmo: OLMo 2 with such experts.

Sources: OLMo team, "2 OLMo 2 furious", 2025; "OLMo 3", 2025; Muennighoff et al., "OLMoE: open
mixture-of-experts language models", 2024; Shi et al., "FlexOlmo: open language models for flexible
data use", 2025.
"""

from __future__ import annotations

from typing import Literal

from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.molmo2 import FUSED as FUSED_IN_MOLMO2
from penstock.families.molmo2 import NAMES_O as IN_MOLMO2
from penstock.families.qwen3 import GGUF_NAMES
from penstock.families.source import (
    OUTPUT,
    QUERY,
    GGUFSource,
    HubSource,
    Source,
    decoder,
    of_gguf,
    of_hub,
)
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec

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


def _olmo2(source: Source) -> ModelConfig:
    source.activation("silu")
    layer = _layer(None, 0, bias=source.bias(QUERY))
    return decoder(source, "olmo2", source.sizes(), [layer], eps=1e-5)


def _olmo3(source: Source) -> ModelConfig:
    source.activation("silu")
    sizes, bias, keys = source.sizes(), source.bias(QUERY), source.fields
    count, dim = sizes["num_layers"], sizes["head_dim"]
    # What stretches the context holds for the layers that see all of it.
    if isinstance(source, GGUFSource):
        rope, kinds, window = source.rope(dim), source.model.layer_kinds(), source.window()
        local = source.model.rope(dim, theta=rope.theta, local=True)
    else:
        window = hub.window(keys)
        kinds = hub.layer_kinds(keys, count, hub.every_nth_full(4, count))
        rope = hub.rope(keys, dim, kind=hub.FULL, theta=500_000.0)
        local = hub.local_rope(keys, dim, keys.number("rope_theta", 500_000.0))
    layers = [
        _layer(window, 1, bias=bias) if kind == hub.SLIDING else _layer(None, 0, bias=bias)
        for kind in kinds
    ]
    return decoder(source, "olmo3", sizes, layers, eps=1e-5, ropes=(rope, local))


def _gguf(model: GGUFMetadata) -> ModelConfig:
    """OLMo 3's files say the same as OLMo 2's, and that layers have windows."""
    read = _olmo3 if "attention.sliding_window" in model.keys else _olmo2
    return read(GGUFSource(model))


OLMO2 = Family(
    "olmo2",
    ("Olmo2ForCausalLM",),
    "OLMo 2",
    of_hub(_olmo2),
    hub_names=NAMES,
    gguf="olmo2",
    read_gguf=_gguf,
)
OLMO3 = Family(
    "olmo3",
    ("Olmo3ForCausalLM",),
    "OLMo 3",
    of_hub(_olmo3),
    hub_names=TensorNames({**NAMES.modules, **IN_MOLMO2}, FUSED_IN_MOLMO2),
    gguf="olmo2",
    read_gguf=_gguf,
)


def _olmoe(source: Source) -> ModelConfig:
    return _sparse_model(source, "olmoe", eps=1e-5)


def _flex(fields: Fields) -> ModelConfig:
    return _sparse_model(HubSource(fields), "flex_olmo", theta=500_000.0, order="post")


def _sparse_model(
    source: Source,
    name: str,
    *,
    eps: float = 1e-6,
    theta: float = 10_000.0,
    order: Literal["pre", "post"] = "pre",
) -> ModelConfig:
    """Reads a model with experts in all layers. eps, theta: where config.json doesn't say."""
    source.activation("silu")
    sizes = source.sizes()
    experts = ExpertsSpec(
        **source.expert_counts("num_experts", "num_local_experts"),
        inner=sizes["intermediate_size"],
        normalised=source.flag("norm_topk_prob", False),
    )
    layer = LayerSpec(
        attention=AttentionSpec(
            norm="whole", qkv_bias=source.bias(QUERY), output_bias=source.bias(OUTPUT)
        ),
        feed_forward=FeedForwardSpec(experts=experts),
        order=order,
    )
    return decoder(source, name, sizes, [layer], eps=eps, theta=theta)


OLMOE = Family(
    "olmoe",
    ("OlmoeForCausalLM",),
    "OLMoE",
    of_hub(_olmoe),
    hub_names=TensorNames({"mlp.gate": "mlp.router"}),
    gguf="olmoe",
    read_gguf=of_gguf(_olmoe),
    gguf_names=GGUF_NAMES,
    unserved=frozenset({"clip_qkv"}),
)
FLEX_OLMO = Family(
    "flex_olmo",
    ("FlexOlmoForCausalLM",),
    "FlexOlmo",
    _flex,
    hub_names=TensorNames({**NAMES.modules, "mlp.gate": "mlp.router"}),
)
