"""Step 3.5 and 3.7 Flash: three of four layers see a short window, with more query heads; each
head's output has a gate, and what some feed-forwards multiply has bounds. Experts are chosen as
DeepSeek-V3's, from one group.

Source: StepFun, "Step 3.5 Flash", 2026.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as struct_replace

from penstock.families import bounds
from penstock.families import hub_reading as hub
from penstock.families.deepseek import GGUF_NAMES, NAMES
from penstock.families.family import LAYER_BEHIND_THE_LAST, Family
from penstock.families.gguf_reading import ROPE_FACTORS, GGUFMetadata, rounded
from penstock.families.recurrent_reading import GGUF_KV_HEADS, GGUF_SIGMOID, gguf_per_layer
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec, KVHeadsSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec, NormSpec
from penstock.model.rope_spec import RopeScaling, RopeSpec

DENSE = 3
"""Layers without experts, the first ones, where config.json doesn't say."""
EXPERTS_IN = "moe_layers_enum"
OF_DRAFTS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_layer_types", "mtp_mlp_layer_types")
ONLY: dict[str, object] = {
    "att_impl_type": "GQA",
    "gating": True,
    "mlp_bias": False,
    "moe_router_activation": "sigmoid",
    "n_shared_experts": 1,
    "scoring_func": "sigmoid",
    "sink": False,
    "use_bidirectional_attention": False,
    "use_head_wise_attn_gate": True,
    "use_moe": True,
    "use_qk_norm": True,
    "use_rope_layers": [],
    "yarn_only_types": ["full_attention"],
    "zero_centered": True,
}
"""Settings of which one value is served."""


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    hub.only(fields, **ONLY)
    fields.ignore(*OF_DRAFTS[1:], "max_seq_len", "need_fp32_gate", "sliding_window")
    groups = fields.integer("num_attention_groups", fields.integer("num_key_value_heads", 8))
    sizes = hub.sizes(fields.completed(num_key_value_heads=groups), default_head_dim=128)
    sizes |= {"num_kv_heads": groups}
    count, size = sizes["num_layers"], sizes["head_dim"]
    kinds, sparse = _kinds(fields, count), _sparse(fields, count)
    present = [kind for kind in (hub.FULL, hub.SLIDING) if kind in kinds]
    attention = {kind: _attention(fields, kind, present.index(kind), sizes) for kind in present}
    _check_own_settings(fields, kinds, attention.get(hub.SLIDING))
    return ModelConfig(
        architecture="step3p5",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-5), plus_one=True),
        ropes=tuple(_rope(fields, kind, kinds, size) for kind in present),
        layers=_layers(
            [attention[kind] for kind in kinds],
            [_experts(fields) if each else None for each in sparse],
            _limits(fields, "swiglu_limits", count),
            _limits(fields, "swiglu_limits_shared", count),
        ),
    )


def _layers(
    attention: Sequence[AttentionSpec],
    experts: Sequence[ExpertsSpec | None],
    limits: Sequence[float | None],
    shared_limits: Sequence[float | None],
) -> tuple[LayerSpec, ...]:
    """limits: of the experts that are chosen; shared_limits: of other feed-forwards."""
    return hub.shared(
        LayerSpec(
            attention=attends,
            feed_forward=FeedForwardSpec(
                limit=shared,
                experts=None if chosen is None else struct_replace(chosen, limit=limit),
            ),
        )
        for attends, chosen, limit, shared in zip(
            attention, experts, limits, shared_limits, strict=True
        )
    )


def _attention(fields: Fields, kind: str, rope: int, sizes: dict[str, Any]) -> AttentionSpec:
    size, bias = sizes["head_dim"], fields.flag("attention_bias", False)
    scale = fields.number("query_pre_attn_scalar", size)
    if scale <= 0:
        raise fields.wrong("query_pre_attn_scalar", "a positive number")
    own: dict[str, Any] = {}
    if kind == hub.SLIDING:
        own = {"window": hub.window(fields), **_own_heads(fields, sizes)}
    return AttentionSpec(
        norm="head",
        head_gate=True,
        rope=rope,
        scale=None if scale == size else scale**-0.5,
        qkv_bias=bias,
        output_bias=bias,
        **own,
    )


def _own_heads(fields: Fields, sizes: dict[str, Any]) -> dict[str, Any]:
    """Heads of layers with a window."""
    other = fields.section("attention_other_setting")
    size = sizes["head_dim"]
    hub.only(other, attention_type=hub.SLIDING, head_dim=size, true_head_dim=size)
    heads = other.integer("num_attention_heads", sizes["num_heads"])
    return _differing(
        fields.integer("num_sliding_attention_heads", heads),
        other.integer("num_attention_groups", sizes["num_kv_heads"]),
        sizes,
    )


def _differing(heads: int, groups: int, sizes: dict[str, Any]) -> dict[str, Any]:
    """Fields of AttentionSpec: a layer's heads, where the model has others."""
    own = KVHeadsSpec(count=groups, size=sizes["head_dim"])
    return {
        "query_heads": None if heads == sizes["num_heads"] else heads,
        "kv_heads": None if groups == sizes["num_kv_heads"] else own,
    }


def _check_own_settings(
    fields: Fields, kinds: Sequence[str], sliding: AttentionSpec | None
) -> None:
    """transformers writes the heads of each layer with a window once more, by its number."""
    key = "per_layer_config"
    heads = (
        None if sliding is None else sliding.query_heads or fields.integer("num_attention_heads")
    )
    said = {"num_attention_heads": heads}
    wanted = {str(at): said for at, kind in enumerate(kinds) if kind == hub.SLIDING}
    stated = fields.section(key).values
    if stated and {str(at): each for at, each in stated.items()} != wanted:
        raise fields.wrong(key, f"{said} for each layer with a window")


def _own(fields: Fields, key: str, count: int) -> list[Any]:
    """Returns a value for each layer. Files may have those of the draft layers after them."""
    fields.ignore(key)  # asked for here
    found, drafts = fields.values.get(key), fields.integer(OF_DRAFTS[0], 0)
    if not isinstance(found, list) or len(found) not in (count, count + drafts):
        raise fields.wrong(key, f"a list of {count} values, or of {count + max(drafts, 0)}")
    return found[:count]


def _kinds(fields: Fields, count: int) -> list[str]:
    if "layer_types" not in fields:
        return [hub.FULL] * count
    stated = _own(fields, "layer_types", count)
    return hub.layer_kinds(fields.replaced({"layer_types": stated}), count, [])


def _sparse(fields: Fields, count: int) -> list[bool]:
    """Whether each layer has experts."""
    key = "mlp_layer_types"
    if key in fields:
        return hub.sparse_behind(fields.replaced({key: _own(fields, key, count)}), count)
    if EXPERTS_IN not in fields:
        first = fields.integer("first_k_dense_replace", DENSE)
        return [number >= first for number in range(count)]
    stated = fields.values[EXPERTS_IN]
    listed = stated.split(",") if isinstance(stated, str) else stated
    wanted = "numbers of layers, a list or with commas between,"
    if not isinstance(listed, list):
        raise fields.wrong(EXPERTS_IN, wanted)
    try:
        numbers = {int(each) for each in listed if str(each).strip()}
    except (TypeError, ValueError):
        raise fields.wrong(EXPERTS_IN, wanted) from None
    return [number in numbers for number in range(count)]


def _experts(fields: Fields) -> ExpertsSpec:
    names = ("moe_num_experts", "n_routed_experts", "num_experts", "num_local_experts")
    fields.ignore(*names)
    counted = next((name for name in names if name in fields), names[0])
    active = "moe_top_k" if "moe_top_k" in fields else "num_experts_per_tok"
    stated = fields.completed(moe_num_experts=288, num_experts_per_tok=8)
    shared = fields.integer("share_expert_dims", fields.integer("share_expert_dim", 1280))
    return ExpertsSpec(
        **bounds.expert_counts(stated, counted, active),
        inner=fields.integer("moe_intermediate_size", 1280),
        router="sigmoid",
        correction=fields.flag("use_moe_router_bias", True),
        normalised=fields.flag("norm_expert_weight", True),
        scale=fields.positive("moe_router_scaling_factor", 1.0),
        shared_inner=shared,
    )


def _limits(fields: Fields, key: str, count: int) -> list[float | None]:
    """A bound for each layer; None where there is none."""
    if key not in fields:
        return [None] * count
    return _read_limits(fields, key, _own(fields, key, count))


def _read_limits(fields: Fields, key: str, stated: Sequence[Any]) -> list[float | None]:
    numbers = [Fields({key: each}, fields.where).number(key, 0.0) for each in stated]
    if min(numbers) < 0:
        raise fields.wrong(key, "a list of numbers that aren't negative")
    return [each or None for each in numbers]


def _rope(fields: Fields, kind: str, kinds: list[str], size: int) -> RopeSpec:
    """StepFun's files have base and share for each layer, and stretch those that see everything;
    transformers' have settings of each kind."""
    if kind in fields.section("rope_parameters"):
        return hub.rope(fields, size, kind=kind, share=1.0)
    own = {
        "rope_theta": _of_kind(fields, "rope_theta", kind, kinds),
        "partial_rotary_factor": _of_kind(fields, "partial_rotary_factors", kind, kinds),
    }
    if kind == hub.SLIDING:
        own |= {"rope_scaling": None, "rope_parameters": None}
    return hub.rope(fields.replaced(own), size, share=1.0)


def _of_kind(fields: Fields, key: str, kind: str, kinds: list[str]) -> Any:
    """What all layers of a kind have; None: the file doesn't say."""
    if key not in fields or not isinstance(fields.values[key], list):
        return fields.values.get(key)
    stated = _own(fields, key, len(kinds))
    found = [each for each, own in zip(stated, kinds, strict=True) if own == kind]
    if any(each != found[0] for each in found):
        raise fields.wrong(key, f"one value in all layers of kind {kind}")
    return found[0]


def _gguf(model: GGUFMetadata) -> ModelConfig:
    """llama.cpp takes scores for sigmoids where the file doesn't say."""
    keys, heads_key = model.keys, "attention.head_count"
    count = bounds.layers_without_drafts(keys)
    heads, groups = (gguf_per_layer(keys, key, count) for key in (heads_key, GGUF_KV_HEADS))
    sliding = _gguf_sliding(keys, count)
    usual = sliding.index(False) if False in sliding else 0
    one_kind = {heads_key: heads[usual], GGUF_KV_HEADS: groups[usual]}
    sizes = replace(model, keys=keys.replaced(one_kind)).sizes() | {"num_layers": count}
    attention = [
        AttentionSpec(
            norm="head",
            head_gate=True,
            rope=1 if sliding[at] else 0,
            window=keys.integer("attention.sliding_window") if sliding[at] else None,
            **_differing(heads[at], groups[at], sizes),
        )
        for at in range(count)
    ]
    return ModelConfig(
        architecture="step3p5",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=_gguf_ropes(model, sizes["head_dim"]),
        layers=_layers(
            attention,
            gguf_experts(model, count),
            _gguf_limits(keys, "swiglu_clamp_exp", count),
            _gguf_limits(keys, "swiglu_clamp_shexp", count),
        ),
    )


def _gguf_sliding(keys: Fields, count: int) -> list[bool]:
    key = "attention.sliding_window_pattern"
    found = keys.listed(key, bool)
    if len(found) < count:
        raise keys.wrong(key, f"a list of at least {count} flags")
    return found[:count]


def _gguf_ropes(model: GGUFMetadata, size: int) -> tuple[RopeSpec, RopeSpec]:
    """llama.cpp halves what rotates in layers that see everything, and stretches them alone. The
    tensor that says by how much has a number for each pair of a whole head."""
    keys, factors = model.keys, model.tensors.get(ROPE_FACTORS)
    whole = keys.integer("rope.dimension_count", size)
    own = keys.integer("rope.dimension_count_swa", size)
    for key, dims in (("rope.dimension_count", whole // 2), ("rope.dimension_count_swa", own)):
        if not 0 < dims <= size or dims % 2:
            raise keys.wrong(key, f"a number that makes 2 to {size} numbers of a head rotate")
    scaling = None
    if factors is not None:
        scaling = RopeScaling(kind="precomputed", kept=factors.shape[0])
    theta = keys.number("rope.freq_base", 10_000.0)
    return (
        RopeSpec(theta=theta, dims=whole // 2, scaling=scaling),
        RopeSpec(theta=keys.number("rope.freq_base_swa", theta), dims=own),
    )


def gguf_experts(model: GGUFMetadata, count: int) -> list[ExpertsSpec | None]:
    """The experts of each of so many layers, chosen by sigmoids; None: the layer has none. Raises
    UnsupportedModel."""
    keys = model.keys
    sparse = [f"blk.{number}.ffn_gate_inp.weight" in model.tensors for number in range(count)]
    if True not in sparse:
        return [None] * count
    if keys.integer("expert_gating_func", GGUF_SIGMOID) != GGUF_SIGMOID:
        raise keys.wrong("expert_gating_func", f"{GGUF_SIGMOID}, a sigmoid,")
    experts = ExpertsSpec(
        **model.expert_counts(),
        inner=keys.integer("expert_feed_forward_length"),
        router="sigmoid",
        correction=f"blk.{sparse.index(True)}.exp_probs_b.bias" in model.tensors,
        normalised=keys.flag("expert_weights_norm", False),
        scale=keys.positive("expert_weights_scale", 1.0),
        shared_inner=keys.integer("expert_shared_feed_forward_length"),
    )
    return [experts if each else None for each in sparse]


def _gguf_limits(keys: Fields, key: str, count: int) -> list[float | None]:
    if key not in keys:
        return [None] * count
    stated = keys.values[key]
    stated = stated if isinstance(stated, list) else [stated] * count
    if len(stated) < count:
        raise keys.wrong(key, f"a list of at least {count} numbers")
    return _read_limits(keys, key, [rounded(each) for each in stated[:count]])


def _of_head(served: ModelConfig) -> LayerSpec:
    """A layer of the head sees a window if any of the model's does, and has no experts."""
    layers = [served.layer(number) for number in range(served.num_layers)]
    short = next((each for each in layers if each.attention.window is not None), layers[-1])
    return struct_replace(short, feed_forward=FeedForwardSpec())


_IN_HEAD = "layers.{}.transformer.shared_head"
OWN_HEAD = replace(
    LAYER_BEHIND_THE_LAST,
    modules={
        **LAYER_BEHIND_THE_LAST.modules,
        f"{_IN_HEAD}.norm": "norm",
        f"{_IN_HEAD}.output": "lm_head",
    },
    normed_input=False,
    spec=_of_head,
)
"""What it computes, as vLLM's model step3p5_mtp has it."""

_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
GATES = "self_attn.head_gates"

STEP3P5 = Family(
    "step3p5",
    ("Step3p5ForCausalLM", "Step3p7FlashForCausalLM", "Step3p7ForConditionalGeneration"),
    "Step 3.5 and 3.7 Flash",
    _hub,
    hub_names=TensorNames(
        {
            **NAMES.modules,
            "moe.gate": "mlp.router",
            "moe.router_bias": "mlp.router.correction",
            **{f"share_expert.{each}": f"mlp.shared_expert.{each}" for each in _PROJECTIONS},
            "self_attn.g_proj": GATES,
        },
        stacked={
            **{f"moe.{each}": (f"mlp.experts.*.{each}",) for each in _PROJECTIONS},
            "mlp.experts.gate_up_proj": ("mlp.experts.*.gate_proj", "mlp.experts.*.up_proj"),
            "mlp.experts.down_proj": ("mlp.experts.*.down_proj",),
        },
        layers_for_drafts=True,
    ),
    gguf="step35",
    read_gguf=_gguf,
    gguf_names=TensorNames(
        {"recurrent.in_proj_z": GATES}, stacked=GGUF_NAMES.stacked, layers_for_drafts=True
    ),
    own_head=OWN_HEAD,
)
