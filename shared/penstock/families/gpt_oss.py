"""gpt-oss: experts whose router has a bias, attention sinks, and windows in every other layer.

Source: OpenAI, "gpt-oss-120b & gpt-oss-20b model card", 2025.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.family import Family, TensorNames
from penstock.families.gguf_reading import GGUFMetadata
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

CLAMP = 7.0
"""What the activation's inputs are clamped to, in all releases."""


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes = hub.sizes(fields, default_head_dim=64)
    fields.ignore("initial_context_length")  # rope_scaling has it too
    clamp = fields.number("swiglu_limit", CLAMP)
    if clamp != CLAMP:
        raise UnsupportedModel(f"{fields.where}: swiglu_limit is {clamp:g}; {CLAMP:g} is served")
    counts = hub.expert_counts(fields, "num_experts", "num_local_experts")
    for key in ("experts_per_token", "num_experts"):
        fields.ignore(key)  # older names of the same
    count = sizes["num_layers"]
    other = [hub.FULL if number % 2 else hub.SLIDING for number in range(count)]
    return _model(
        sizes,
        counts,
        rope=hub.rope(fields, sizes["head_dim"], theta=150_000.0),
        eps=fields.number("rms_norm_eps", 1e-5),
        windows=[
            hub.window(fields) if kind == hub.SLIDING else None
            for kind in hub.layer_kinds(fields, count, other)
        ],
        bias=fields.flag("attention_bias", True),
    )


def _gguf(model: GGUFMetadata) -> ModelConfig:
    sizes, keys = model.sizes(), model.keys
    sizes["intermediate_size"] = keys.integer(
        "expert_feed_forward_length", sizes["intermediate_size"]
    )
    rope = model.rope(sizes["head_dim"], theta=150_000.0)
    if rope.scaling is not None:
        # As the model was made; the file doesn't say it.
        scaling = msgspec.structs.replace(rope.scaling, truncate=False)
        rope = msgspec.structs.replace(rope, scaling=scaling)
    window = keys.integer("attention.sliding_window", 0)
    return _model(
        sizes,
        model.expert_counts(),
        rope=rope,
        eps=model.rms_eps(),
        windows=[
            None if number % 2 or window < 1 else window for number in range(sizes["num_layers"])
        ],
        bias=model.has("attn_q.bias"),
    )


def _model(
    sizes: dict[str, Any],
    counts: dict[str, Any],
    *,
    rope: RopeSpec,
    eps: float,
    windows: Sequence[int | None],
    bias: bool,
) -> ModelConfig:
    feed_forward = FeedForwardSpec(
        activation="clamped_swiglu",
        bias=True,
        experts=ExpertsSpec(**counts, inner=sizes["intermediate_size"], router_bias=True),
    )
    layers = [
        LayerSpec(
            attention=AttentionSpec(window=window, sinks=True, qkv_bias=bias, output_bias=bias),
            feed_forward=feed_forward,
        )
        for window in windows
    ]
    return ModelConfig(
        architecture="gpt_oss",
        **sizes,
        norm=NormSpec(eps=eps),
        ropes=(rope,),
        layers=hub.shared(layers),
    )


GPT_OSS = Family(
    "gpt_oss",
    ("GptOssForCausalLM",),
    "gpt-oss",
    _hub,
    gguf="gpt-oss",
    read_gguf=_gguf,
    hub_names=TensorNames(
        {"self_attn.sinks": "self_attn.sinks.weight"},
        alternating={
            "mlp.experts.gate_up_proj": ("mlp.experts.*.gate_proj", "mlp.experts.*.up_proj"),
            "mlp.experts.down_proj": ("mlp.experts.*.down_proj",),
        },
    ),
    gguf_names=TensorNames(
        {"attention_output_norm": "post_attention_layernorm"},
        stacked={
            f"mlp.stacked.{name}": (f"mlp.experts.*.{name}",)
            for name in ("gate_proj", "up_proj", "down_proj")
        },
    ),
)
