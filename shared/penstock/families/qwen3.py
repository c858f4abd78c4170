"""Qwen 3: Llama with queries and keys normalised head by head, and a head size of its own; dense,
or with a mixture of experts: Qwen3-30B-A3B and relatives. Mellum 2: such a mixture, with windows in
three of four layers and a rotation of their own.

Sources: Yang et al., "Qwen3 technical report", 2025; JetBrains, "Mellum 2", 2026.
"""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.molmo2 import FUSED as FUSED_IN_MOLMO2
from penstock.families.molmo2 import NAMES as IN_MOLMO2
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
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec
from penstock.model.rope_spec import RopeSpec


def rope_behind_a_tower(source: Source, head_dim: int) -> RopeSpec | None:
    """The rotation in a GGUF file of Qwen3, or of Qwen3-VL's decoder; None in config.json. How many
    layers get something of the tower's, as such a file says, isn't used: the tower says which."""
    if isinstance(source, HubSource):
        return None
    source.fields.ignore("n_deepstack_layers")
    return source.model.with_sections(source.rope(head_dim), interleaved=True)


def _read(source: Source) -> ModelConfig:
    source.activation("silu")
    sizes, query, output = source.sizes(head_dim=128), source.bias(QUERY), source.bias(OUTPUT)
    layers = [
        LayerSpec(
            attention=AttentionSpec(window=window, norm="head", qkv_bias=query, output_bias=output)
        )
        for window in source.windows_behind(sizes["num_layers"])
    ]
    rope = rope_behind_a_tower(source, sizes["head_dim"])
    return decoder(source, "qwen3", sizes, layers, rope=rope)


QWEN3 = Family(
    "qwen3",
    ("Qwen3ForCausalLM",),
    "Qwen3",
    of_hub(_read),
    hub_names=TensorNames(IN_MOLMO2, FUSED_IN_MOLMO2),
    gguf="qwen3",
    gguf_also=("qwen3vl",),
    read_gguf=of_gguf(_read),
)


def _moe(source: Source) -> ModelConfig:
    source.activation("silu")
    sizes, query, output = source.sizes(head_dim=128), source.bias(QUERY), source.bias(OUTPUT)
    experts = ExpertsSpec(
        **source.expert_counts("num_experts", "num_local_experts"),
        inner=source.integer("moe_intermediate_size", gguf="expert_feed_forward_length"),
        normalised=source.flag("norm_topk_prob", False, without=True),
    )
    count = sizes["num_layers"]
    layers = [
        LayerSpec(
            attention=AttentionSpec(window=window, norm="head", qkv_bias=query, output_bias=output),
            feed_forward=FeedForwardSpec(experts=experts if sparse else None),
        )
        for window, sparse in zip(
            source.windows_behind(count), source.sparse_layers(count), strict=True
        )
    ]
    rope = rope_behind_a_tower(source, sizes["head_dim"])
    return decoder(source, "qwen3_moe", sizes, layers, rope=rope)


GGUF_NAMES = TensorNames(
    stacked={
        f"mlp.stacked.{name}": (f"mlp.experts.*.{name}",)
        for name in ("gate_proj", "up_proj", "down_proj")
    }
)
"""Tensor names of GGUF files, in which one tensor has the matrices of all experts."""


QWEN3_MOE = Family(
    "qwen3_moe",
    ("Qwen3MoeForCausalLM",),
    "Qwen3-MoE",
    of_hub(_moe),
    hub_names=TensorNames(
        {"mlp.gate": "mlp.router"},
        stacked={  # after Qwen3-VL's tower
            "mlp.experts.gate_up_proj": ("mlp.experts.*.gate_proj", "mlp.experts.*.up_proj"),
            "mlp.experts.down_proj": ("mlp.experts.*.down_proj",),
        },
        turned=True,
    ),
    gguf="qwen3moe",
    gguf_also=("qwen3vlmoe",),
    read_gguf=of_gguf(_moe),
    gguf_names=GGUF_NAMES,
)


def _mellum(source: Source) -> ModelConfig:
    source.activation("silu")
    sizes, query, output = source.sizes(head_dim=128), source.bias(QUERY), source.bias(OUTPUT)
    experts = ExpertsSpec(
        **source.expert_counts("num_experts", "num_local_experts"),
        inner=source.integer("moe_intermediate_size", 896, "expert_feed_forward_length"),
        normalised=source.flag("norm_topk_prob", True),
    )
    keys, count, dim = source.fields, sizes["num_layers"], sizes["head_dim"]
    kinds, sparse, window = [hub.FULL] * count, [True] * count, None
    if isinstance(source, GGUFSource):
        rope, window = source.rope(dim), source.window()
        local = source.model.rope(dim, theta=rope.theta, local=True)
        if "attention.sliding_window" in keys:
            kinds = source.model.layer_kinds()
    else:
        sparse = hub.sparse_behind(keys.completed(mlp_layer_types=["sparse"] * count), count)
        kinds = hub.layer_kinds(keys, count, kinds)
        window = hub.window(keys.completed(sliding_window=1024))
        rope = hub.rope(keys, dim, kind=hub.FULL, theta=500_000.0)
        local = hub.rope(keys, dim, kind=hub.SLIDING, theta=10_000.0)
    windows = [window if kind == hub.SLIDING else None for kind in kinds]
    layers = [
        LayerSpec(
            attention=AttentionSpec(
                window=own,
                rope=0 if own is None else 1,
                norm="head",
                qkv_bias=query,
                output_bias=output,
            ),
            feed_forward=FeedForwardSpec(experts=experts if each else None),
        )
        for own, each in zip(windows, sparse, strict=True)
    ]
    return decoder(source, "mellum", sizes, layers, ropes=(rope, local))


MELLUM = Family(
    "mellum",
    ("MellumForCausalLM",),
    "Mellum 2",
    of_hub(_mellum),
    hub_names=TensorNames({"mlp.gate": "mlp.router"}),
    gguf="mellum",
    read_gguf=of_gguf(_mellum),
    gguf_names=GGUF_NAMES,
)
