"""gpt-oss: experts whose router has a bias, attention sinks, and windows in every other layer.

Source: OpenAI, "gpt-oss-120b & gpt-oss-20b model card", 2025.
"""

from __future__ import annotations

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.source import QUERY, GGUFSource, HubSource, Source, decoder, of_gguf, of_hub
from penstock.families.tensor_names import TensorNames
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec
from penstock.model.rope_spec import RopeSpec

THETA = 150_000.0
CLAMP = 7.0
"""What the activation's inputs are clamped to, in all releases."""


def _read(source: Source) -> ModelConfig:
    source.activation("silu")
    sizes, keys = source.sizes(head_dim=64), source.fields
    source.ignore("initial_context_length")  # rope_scaling has it too
    clamp = source.number("swiglu_limit", CLAMP)
    if clamp != CLAMP:
        raise UnsupportedModel(f"{keys.where}: swiglu_limit is {clamp:g}; {CLAMP:g} is served")
    counts = source.expert_counts("num_experts", "num_local_experts")
    source.ignore("experts_per_token", "num_experts")  # older names of the same
    count, bias = sizes["num_layers"], source.bias(QUERY, default=True)
    kinds = [hub.FULL if number % 2 else hub.SLIDING for number in range(count)]
    if isinstance(source, GGUFSource):
        inner = keys.integer("expert_feed_forward_length", sizes["intermediate_size"])
        sizes["intermediate_size"] = inner
        window = keys.integer("attention.sliding_window", 0)
        windows = [window if window > 0 and kind == hub.SLIDING else None for kind in kinds]
    else:
        kinds = hub.layer_kinds(keys, count, kinds)
        windows = [hub.window(keys) if kind == hub.SLIDING else None for kind in kinds]
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
    rope = _rope(source, sizes["head_dim"])
    return decoder(source, "gpt_oss", sizes, layers, eps=1e-5, rope=rope)


def _rope(source: Source, head_dim: int) -> RopeSpec:
    if isinstance(source, HubSource):
        return source.rope(head_dim, THETA)
    rope = source.model.rope(head_dim, theta=THETA)
    if rope.scaling is None:
        return rope
    # As the model was made; the file doesn't say it.
    scaling = msgspec.structs.replace(rope.scaling, truncate=False)
    return msgspec.structs.replace(rope, scaling=scaling)


GPT_OSS = Family(
    "gpt_oss",
    ("GptOssForCausalLM",),
    "gpt-oss",
    of_hub(_read),
    gguf="gpt-oss",
    read_gguf=of_gguf(_read),
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
