"""Qwen 3: Llama with queries and keys normalised head by head, and a head size of its own; dense,
or with a mixture of experts: Qwen3-30B-A3B and relatives. Mellum 2: such a mixture, with windows in
three of four layers and a rotation of their own.

Sources: Yang et al., "Qwen3 technical report", 2025; JetBrains, "Mellum 2", 2026.
"""

from __future__ import annotations

from typing import Any

from penstock.families import hub_reading as hub
from penstock.families.family import Family, TensorNames
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.molmo2 import FUSED as FUSED_IN_MOLMO2
from penstock.families.molmo2 import NAMES as IN_MOLMO2
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import (
    AttentionSpec,
    ExpertsSpec,
    FeedForwardSpec,
    LayerSpec,
    NormSpec,
    RopeSpec,
)


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
    hub_names=TensorNames(IN_MOLMO2, FUSED_IN_MOLMO2),
    gguf="qwen3",
    gguf_also=("qwen3vl",),
    read_gguf=_gguf,
)


def _hub_moe(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes, bias = hub.sizes(fields, default_head_dim=128), fields.flag("attention_bias", False)
    experts = ExpertsSpec(
        **hub.expert_counts(fields, "num_experts", "num_local_experts"),
        inner=fields.integer("moe_intermediate_size"),
        normalised=fields.flag("norm_topk_prob", False),
    )
    count = sizes["num_layers"]
    layers = []
    for window, sparse in zip(
        hub.windows_behind(fields, count), hub.sparse_layers(fields, count), strict=True
    ):
        attention = AttentionSpec(window=window, norm="head", qkv_bias=bias, output_bias=bias)
        feed_forward = FeedForwardSpec(experts=experts if sparse else None)
        layers.append(LayerSpec(attention=attention, feed_forward=feed_forward))
    return ModelConfig(
        architecture="qwen3_moe",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6)),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=hub.shared(layers),
    )


GGUF_NAMES = TensorNames(
    stacked={
        f"mlp.stacked.{name}": (f"mlp.experts.*.{name}",)
        for name in ("gate_proj", "up_proj", "down_proj")
    }
)
"""Tensor names of GGUF files, in which one tensor has the matrices of all experts."""


def _gguf_moe(model: GGUFMetadata) -> ModelConfig:
    sizes, keys = model.sizes(), model.keys
    experts = ExpertsSpec(**model.expert_counts(), inner=keys.integer("expert_feed_forward_length"))
    layer = LayerSpec(
        attention=AttentionSpec(norm="head"), feed_forward=FeedForwardSpec(experts=experts)
    )
    return ModelConfig(
        architecture="qwen3_moe",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(rope_behind_a_tower(model, sizes["head_dim"]),),
        layers=(layer,),
    )


QWEN3_MOE = Family(
    "qwen3_moe",
    ("Qwen3MoeForCausalLM",),
    "Qwen3-MoE",
    _hub_moe,
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
    read_gguf=_gguf_moe,
    gguf_names=GGUF_NAMES,
)


def _hub_mellum(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes, bias = hub.sizes(fields, default_head_dim=128), fields.flag("attention_bias", False)
    experts = ExpertsSpec(
        **hub.expert_counts(fields, "num_experts", "num_local_experts"),
        inner=fields.integer("moe_intermediate_size", 896),
        normalised=fields.flag("norm_topk_prob", True),
    )
    count, key = sizes["num_layers"], "mlp_layer_types"
    sparse = hub.sparse_behind(fields.completed(**{key: ["sparse"] * count}), count)
    kinds = hub.layer_kinds(fields, count, [hub.FULL] * count)
    window = hub.window(fields.completed(sliding_window=1024))
    return _mellum(
        sizes,
        fields.number("rms_norm_eps", 1e-6),
        [window if kind == hub.SLIDING else None for kind in kinds],
        [experts if each else None for each in sparse],
        (
            hub.rope(fields, sizes["head_dim"], kind=hub.FULL, theta=500_000.0),
            hub.rope(fields, sizes["head_dim"], kind=hub.SLIDING, theta=10_000.0),
        ),
        bias=bias,
    )


def _mellum(
    sizes: dict[str, Any],
    eps: float,
    windows: list[int | None],
    experts: list[ExpertsSpec | None],
    ropes: tuple[RopeSpec, RopeSpec],
    *,
    bias: bool,
) -> ModelConfig:
    """A model whose layers have a window or None, and experts or None. ropes: of layers without a
    window, then of those with one."""
    return ModelConfig(
        architecture="mellum",
        **sizes,
        norm=NormSpec(eps=eps),
        ropes=ropes,
        layers=hub.shared(
            LayerSpec(
                attention=AttentionSpec(
                    window=window,
                    rope=0 if window is None else 1,
                    norm="head",
                    qkv_bias=bias,
                    output_bias=bias,
                ),
                feed_forward=FeedForwardSpec(experts=own),
            )
            for window, own in zip(windows, experts, strict=True)
        ),
    )


def _gguf_mellum(model: GGUFMetadata) -> ModelConfig:
    sizes, keys = model.sizes(), model.keys
    experts = ExpertsSpec(**model.expert_counts(), inner=keys.integer("expert_feed_forward_length"))
    rope, window, count = model.rope(sizes["head_dim"]), model.window(), sizes["num_layers"]
    kinds = model.layer_kinds() if "attention.sliding_window" in keys else [hub.FULL] * count
    return _mellum(
        sizes,
        model.rms_eps(),
        [window if kind == hub.SLIDING else None for kind in kinds],
        [experts] * count,
        (rope, model.rope(sizes["head_dim"], theta=rope.theta, local=True)),
        bias=False,
    )


MELLUM = Family(
    "mellum",
    ("MellumForCausalLM",),
    "Mellum 2",
    _hub_mellum,
    hub_names=TensorNames({"mlp.gate": "mlp.router"}),
    gguf="mellum",
    read_gguf=_gguf_mellum,
    gguf_names=GGUF_NAMES,
)
