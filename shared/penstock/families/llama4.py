"""Llama 4: experts whose inputs are weighed, attention within chunks of positions, and every fourth
layer without rotary positions, whose queries grow instead.

Source: Meta AI, "The Llama 4 herd", 2025; the growth: Nakanishi, "Scalable-softmax is superior for
attention", 2025.
"""

from __future__ import annotations

from typing import Any

from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.qwen3 import GGUF_NAMES
from penstock.families.source import GGUFSource, HubSource, decoder
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec
from penstock.model.rope_spec import RopeScaling, RopeSpec

CHUNKED = "chunked_attention"
INTERVAL = 4
"""Every so many layers, one has no rotary positions."""
GROWTH, LENGTH = 0.1, 8192
"""Queries grow there by so much with each so many positions; as many make up a chunk."""


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes = hub.sizes(
        fields, default_head_dim=128, inner=fields.integer("intermediate_size_mlp", 16_384)
    )
    count = sizes["num_layers"]
    fields.ignore("router_jitter_noise", "for_llm_compressor")  # of training, of a tool
    turns, growing = _turning(fields, count), _growing(fields, sizes["head_dim"])
    bias, normed = fields.flag("attention_bias", False), fields.flag("use_qk_norm", True)
    experts, routed = _experts(fields), _routed(fields, count)
    layers = [
        LayerSpec(
            attention=AttentionSpec(
                chunk=chunk,
                rope=0 if turning else None if growing is None else 1,
                norm="head" if normed and turning else "none",
                qkv_bias=bias,
                output_bias=bias,
            ),
            feed_forward=FeedForwardSpec(experts=experts if number in routed else None),
        )
        for number, (turning, chunk) in enumerate(
            zip(turns, _chunks(fields, turns, sizes["max_position"]), strict=True)
        )
    ]
    rope = hub.rope(fields, sizes["head_dim"], theta=500_000.0)
    ropes = (rope,) if growing is None else (rope, growing)
    return decoder(HubSource(fields), "llama4", sizes, layers, eps=1e-5, ropes=ropes)


def _turning(fields: Fields, count: int) -> list[bool]:
    """Whether each layer has rotary positions. An empty list says nothing."""
    interval = fields.integer("no_rope_layer_interval", INTERVAL)
    if interval < 1:
        raise fields.wrong("no_rope_layer_interval", "a positive number")
    key = "no_rope_layers"
    stated = fields.listed(key, int) if fields.values.get(key) is not None else []
    fields.ignore(key)
    if not stated:
        return [(number + 1) % interval != 0 for number in range(count)]
    if len(stated) < count:
        raise fields.wrong(key, f"a list of {count} numbers")
    return [bool(each) for each in stated[:count]]


def _chunks(fields: Fields, turns: list[bool], longest: int) -> list[int | None]:
    """Tokens in a chunk of each layer's attention; None: the layer sees everything."""
    key = "layer_types"
    kinds = [CHUNKED if each else hub.FULL for each in turns]
    if fields.values.get(key) is not None:
        kinds = fields.listed(key, str)
    fields.ignore(key)
    if len(kinds) != len(turns) or not set(kinds) <= {CHUNKED, hub.FULL}:
        raise fields.wrong(key, f"{CHUNKED} or {hub.FULL} for each of {len(turns)} layers")
    size = fields.optional_integer("attention_chunk_size")
    if "attention_chunk_size" not in fields:
        size = LENGTH
    if size is None or size >= longest:
        return [None] * len(kinds)
    if size < 1:
        raise fields.wrong("attention_chunk_size", "a positive number")
    return [size if kind == CHUNKED else None for kind in kinds]


def _growing(fields: Fields, head_dim: int) -> RopeSpec | None:
    """The rotation of layers without rotary positions: nothing turns, and queries grow. None: they
    don't grow either."""
    by, length = fields.number("attn_scale", GROWTH), fields.integer("floor_scale", LENGTH)
    on = fields.values.get("attn_temperature_tuning", True)  # a number in some releases
    fields.ignore("attn_temperature_tuning")
    if not on or not by:
        return None
    if length < 1:
        raise fields.wrong("floor_scale", "a positive number")
    return _growing_spec(head_dim, by, length)


def _growing_spec(head_dim: int, by: float, length: int) -> RopeSpec:
    return RopeSpec(
        dims=head_dim,
        scaling=RopeScaling(kind="proportional", kept=0),
        query_growth=by,
        query_growth_length=length,
        query_growth_first=1,
    )


def _experts(fields: Fields) -> ExpertsSpec:
    counts = hub.expert_counts(fields, "num_local_experts")
    return _spec_of_experts(counts, fields.integer("intermediate_size", 8192))


def _spec_of_experts(counts: dict[str, Any], inner: int) -> ExpertsSpec:
    return ExpertsSpec(
        **counts,
        inner=inner,
        router="sigmoid",
        normalised=False,
        weighs_input=True,
        shared_inner=inner,
    )


def _routed(fields: Fields, count: int) -> frozenset[int]:
    """Which layers have experts."""
    step, key = fields.integer("interleave_moe_layer_step", 1), "moe_layers"
    if fields.values.get(key) is not None:
        return frozenset(fields.listed(key, int))
    fields.ignore(key)
    if step < 1:
        raise fields.wrong("interleave_moe_layer_step", "a positive number")
    return frozenset(range(step - 1, count, step))


WITHOUT_NORMS = 128
"""Number of experts of the release without norms of queries and keys: its files don't say so."""


def _gguf(model: GGUFMetadata) -> ModelConfig:
    """Files say neither what a chunk is nor which layers rotate: all releases have the same."""
    sizes, keys = model.sizes(), model.keys
    if "attention.sliding_window" in keys:
        raise keys.wrong("attention.sliding_window", "none, and 8192 positions in a chunk,")
    hub.only(keys, **{"attention.sliding_window_pattern": INTERVAL, "leading_dense_block_count": 0})
    experts = _spec_of_experts(model.expert_counts(), keys.integer("expert_feed_forward_length"))
    step = keys.integer("interleave_moe_layer_step")
    if step < 1:
        raise keys.wrong("interleave_moe_layer_step", "a positive number")
    normed = experts.count != WITHOUT_NORMS
    chunk = LENGTH if sizes["max_position"] > LENGTH else None
    layers = []
    for number in range(1, sizes["num_layers"] + 1):
        attention = AttentionSpec(chunk=chunk, norm="head" if normed else "none")
        if number % INTERVAL == 0:
            attention = AttentionSpec(rope=1)
        feed_forward = FeedForwardSpec(experts=None if number % step else experts)
        layers.append(LayerSpec(attention=attention, feed_forward=feed_forward))
    head_dim = sizes["head_dim"]
    ropes = model.rope(head_dim), _growing_spec(head_dim, GROWTH, LENGTH)
    return decoder(GGUFSource(model), "llama4", sizes, layers, ropes=ropes)


LLAMA4 = Family(
    "llama4",
    ("Llama4ForCausalLM",),
    "Llama 4",
    _hub,
    hub_names=TensorNames(
        {
            "feed_forward.router": "mlp.router",
            **{
                f"feed_forward.{at}{name}": f"mlp.{at}{name}"
                for at in ("", "shared_expert.", "experts.*.")
                for name in ("gate_proj", "up_proj", "down_proj")
            },
        },
        stacked={
            "feed_forward.experts.gate_up_proj": (
                "mlp.experts.*.gate_proj",
                "mlp.experts.*.up_proj",
            ),
            "feed_forward.experts.down_proj": ("mlp.experts.*.down_proj",),
        },
        turned="always",
        unit_norms=True,
        pairs_adjacent=True,
    ),
    gguf="llama4",
    read_gguf=_gguf,
    gguf_names=TensorNames(stacked=GGUF_NAMES.stacked, unit_norms=True, pairs_adjacent=True),
)
