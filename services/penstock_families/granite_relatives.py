"""Granite 4 with windows, dense and with experts, and HyperCLOVA X SEED: Granite 3's layers with
something besides.

Granite's newer models have sinks in all layers, windows in three of four, and a rotation of each
layer's own, or none. HyperCLOVA X has norms after attention and feed-forward, too.

Sources: Granite team, "Granite Swash", 2026; NAVER Cloud, "HyperCLOVA X THINK technical report",
2025; what both compute, as transformers' classes have it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.families import hub_reading as hub
from penstock.families import recurrent_reading as recurrent
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.granite import GRANITE_MOE_SHARED, gguf_model, model_of, sparse_model
from penstock.families.qwen3 import GGUF_NAMES
from penstock.families.source import HubSource
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import FeedForwardSpec, LayerSpec
from penstock.model.rope_spec import RopeSpec


def _hub_swa(fields: Fields) -> ModelConfig:
    feed_forward = FeedForwardSpec(bias=fields.flag("mlp_bias", False))
    source = HubSource(fields)
    plain = model_of(source, "granite_swa", source.sizes(tied=True), feed_forward)
    return _with_windows(fields, plain, eps=1e-5)


def _hub_moe_swa(fields: Fields) -> ModelConfig:
    shared = fields.integer("shared_intermediate_size", 0)
    plain = sparse_model(HubSource(fields), "granitemoe_swa", shared_inner=shared)
    return _with_windows(fields, plain, eps=1e-6)


def _with_windows(fields: Fields, plain: ModelConfig, *, eps: float) -> ModelConfig:
    """plain: the model without them. eps: where config.json doesn't say it. Raises
    UnsupportedModel."""
    count, (layer,) = plain.num_layers, plain.layers
    usual = [hub.SLIDING if number % 4 else hub.FULL for number in range(count)]
    kinds = hub.layer_kinds(fields, count, usual)
    window = hub.window(fields.completed(sliding_window=128))
    ropes, chosen = _rotations(fields, plain.ropes[0], count)
    layers = [
        _attending(layer, window=window if kind == hub.SLIDING else None, rope=rope, sinks=True)
        for kind, rope in zip(kinds, chosen, strict=True)
    ]
    norm = msgspec.structs.replace(plain.norm, eps=fields.number("rms_norm_eps", eps))
    return msgspec.structs.replace(plain, norm=norm, ropes=ropes, layers=hub.shared(layers))


def _rotations(
    fields: Fields, rope: RopeSpec, count: int
) -> tuple[tuple[RopeSpec, ...], list[int | None]]:
    """All rotations, and which one each layer has; None: its base is 0, and it has none."""
    key = "layer_rope_theta"
    if key not in fields:
        return (rope,), [0] * count
    listed = fields.values[key]
    if not isinstance(listed, list) or len(listed) != count:
        raise fields.wrong(key, f"a list of {count} numbers")
    bases = [Fields({key: each}, fields.where).number(key) for each in listed]
    if min(bases) < 0:
        raise fields.wrong(key, "a list of numbers that aren't negative")
    own = sorted({base for base in bases if base})
    ropes = tuple(msgspec.structs.replace(rope, theta=base) for base in own)
    return ropes, [own.index(base) if base else None for base in bases]


def _attending(layer: LayerSpec, **changes: Any) -> LayerSpec:
    attention = msgspec.structs.replace(layer.attention, **changes)
    return msgspec.structs.replace(layer, attention=attention)


ROTATES = "attention.rope_pattern"


def _gguf_swa(model: GGUFMetadata) -> ModelConfig:
    """Files of both: those with experts say how many. There is one rotation, which layers have or
    don't."""
    keys, sparse = model.keys, model.keys.integer("expert_count", 0) > 0
    plain = gguf_model(model, "granitemoe_swa" if sparse else "granite_swa")
    count, (layer,) = plain.num_layers, plain.layers
    kinds, window = model.layer_kinds(), keys.integer("attention.sliding_window")
    turns = [True] * count
    if ROTATES in keys:
        turns = [bool(each) for each in recurrent.gguf_per_layer(keys, ROTATES, count)]
    layers = [
        _attending(
            layer,
            window=window if kind == hub.SLIDING else None,
            rope=0 if turning else None,
            sinks=True,
        )
        for kind, turning in zip(kinds, turns, strict=True)
    ]
    return msgspec.structs.replace(plain, layers=hub.shared(layers))


GGUF_SHARED = "mlp.shared_expert.up_proj"
"""Has the gate's rows in front of its own."""
SWA_NAMES = TensorNames(
    fused={GGUF_SHARED: ("mlp.shared_expert.gate_proj", GGUF_SHARED)},
    stacked={
        **GGUF_NAMES.stacked,
        "mlp.stacked.gate_up_proj": ("mlp.experts.*.gate_proj", "mlp.experts.*.up_proj"),
    },
    pairs_adjacent=True,
)
SINKS = {"self_attn.sinks": "self_attn.sinks.weight"}
GRANITE_SWA = Family(
    "granite_swa",
    ("GraniteSWAForCausalLM",),
    "Granite Swash",
    _hub_swa,
    hub_names=TensorNames(SINKS),
    gguf="granite_swa",
    read_gguf=_gguf_swa,
    gguf_names=SWA_NAMES,
)
GRANITE_MOE_SWA = Family(
    "granitemoe_swa",
    ("GraniteMoeSWAForCausalLM",),
    "Granite Swash MoE",
    _hub_moe_swa,
    hub_names=TensorNames(
        {
            **SINKS,
            "block_sparse_moe.router": "mlp.router",
            "shared_mlp.output_linear": "mlp.shared_expert.down_proj",
        },
        fused=GRANITE_MOE_SHARED.hub_names.fused,
        stacked={
            "block_sparse_moe.experts.gate_up_proj": (
                "mlp.experts.*.gate_proj",
                "mlp.experts.*.up_proj",
            ),
            "block_sparse_moe.experts.down_proj": ("mlp.experts.*.down_proj",),
        },
    ),
    gguf="granite_swa",
    read_gguf=_gguf_swa,
    gguf_names=SWA_NAMES,
)


def _hub_hyperclovax(fields: Fields) -> ModelConfig:
    """Logits are multiplied where Granite's are divided, and scores scaled as anywhere else where
    the file doesn't say how."""
    sizes = hub.sizes(fields)
    scale = fields.number("attention_multiplier", sizes["head_dim"] ** -0.5)
    by = fields.number("logits_scaling", 1.0)
    feed_forward = FeedForwardSpec(bias=fields.flag("mlp_bias", False))
    plain = model_of(
        HubSource(fields.without("logits_scaling")), "hyperclovax", sizes, feed_forward
    )
    layer = msgspec.structs.replace(
        _attending(plain.layers[0], scale=scale),
        order="sandwich" if fields.flag("use_post_norm", True) else "pre",
    )
    return msgspec.structs.replace(plain, layers=(layer,), logits_multiplier=by)


HYPERCLOVAX = Family(
    "hyperclovax",
    ("HyperCLOVAXForCausalLM",),
    "HyperCLOVA X SEED Think",
    _hub_hyperclovax,
    hub_names=TensorNames(
        {"post_norm1": "attention_output_norm", "post_norm2": "feed_forward_output_norm"}
    ),
)
