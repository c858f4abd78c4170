"""Gemma 4, its text half: dense, with inputs of each layer's own, or with experts in parallel with
the feed-forward. Layers that see everything have larger heads than those in a window, and the last
ones may read the keys and values of earlier ones.

Source: transformers' Gemma4TextConfig.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families import bounds
from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.gemma2 import NAMES as NORM_NAMES
from penstock.families.gemma_layers import kv_sources, read_layer_inputs
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec, KVHeadsSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec, NormSpec
from penstock.model.rope_spec import RopeScaling, RopeSpec

GLOBAL_HEAD_DIM = 512
"""Size of a head in the layers that see everything, where config.json doesn't say."""
THETA, LOCAL_THETA = 1_000_000.0, 10_000.0
ROTATING = 0.25
"""Share of a head that rotates in the layers that see everything, where config.json doesn't say."""


def _hub(fields: Fields) -> ModelConfig:
    sizes = hub.sizes(fields, default_head_dim=256, tied=True)
    activation = hub.activation(
        fields, "gelu_tanh", key="hidden_activation", default="gelu_pytorch_tanh"
    )
    _causal(fields)
    count = sizes["num_layers"]
    kinds = hub.layer_kinds(fields, count, [*hub.every_nth_full(6, count)[:-1], hub.FULL])
    if kinds[-1] != hub.FULL:
        raise UnsupportedModel(
            f"{fields.where}: layer_types ends with {kinds[-1]!r}, not {hub.FULL}"
        )
    shared = fields.integer("num_kv_shared_layers", 0)
    reads = kv_sources(kinds, shared, fields.where)
    own = _global_heads(fields, sizes["num_kv_heads"], sizes["head_dim"], kinds)
    alike = fields.flag("attention_k_eq_v", False)
    bias = fields.flag("attention_bias", False)
    wide = fields.flag("use_double_wide_mlp", False)
    window, experts = hub.window(fields), _experts(fields)
    layers = []
    for number, kind in enumerate(kinds):
        full = kind == hub.FULL
        attention = AttentionSpec(
            window=None if full else window,
            scale=1.0,
            rope=0 if full else 1,
            norm="head",
            kv_heads=own if full else None,
            value_norm=True,
            values_of_keys=alike and full,
            reads=reads[number],
            qkv_bias=bias,
            output_bias=bias,
        )
        inner = 2 * sizes["intermediate_size"] if wide and reads[number] is not None else None
        feed_forward = FeedForwardSpec(activation=activation, inner=inner, experts=experts)
        layers.append(
            LayerSpec(
                attention=attention,
                feed_forward=feed_forward,
                order="sandwich",
                output_scale=True,
            )
        )
    return ModelConfig(
        architecture="gemma4",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6)),
        ropes=(_global_rope(fields, own.size), _local_rope(fields, sizes["head_dim"])),
        layers=hub.shared(layers),
        embedding_multiplier=sizes["hidden_size"] ** 0.5,
        logits_soft_cap=fields.optional_number("final_logit_softcapping"),
        per_layer_inputs=read_layer_inputs(fields, sizes["vocab_size"]),
    )


def _causal(fields: Fields) -> None:
    """What looks both ways is images, in some releases."""
    kind = fields.text("use_bidirectional_attention", "vision")
    if kind != "vision":
        raise UnsupportedModel(
            f"{fields.where}: use_bidirectional_attention is {kind!r}; null and 'vision' are served"
        )


def _global_heads(fields: Fields, kv_heads: int, head_dim: int, kinds: list[str]) -> KVHeadsSpec:
    """KV heads of the layers that see everything. transformers writes them for each of these layers
    since release 5, and once before."""
    size = fields.integer("global_head_dim", GLOBAL_HEAD_DIM)
    count = fields.integer("num_global_key_value_heads", kv_heads)
    if not fields.flag("attention_k_eq_v", False):
        count = kv_heads
    found = KVHeadsSpec(count=count, size=size)
    if "per_layer_config" not in fields:
        return found
    section, usual = fields.section("per_layer_config"), KVHeadsSpec(count=kv_heads, size=head_dim)
    # Numbers have leading zeros in large models.
    stated = {key.lstrip("0") or "0": section.section(key) for key in section.values}
    full = {str(number) for number, kind in enumerate(kinds) if kind == hub.FULL}
    if not stated.keys() <= full:
        raise fields.wrong("per_layer_config", "a section for layers that see everything alone")
    of_each = [_heads(stated[key], usual) if key in stated else usual for key in full]
    if len(set(of_each)) != 1:
        raise UnsupportedModel(
            f"{section.where}: heads differ between layers that see everything, which is not served"
        )
    return of_each[0]


def _heads(settings: Fields, usual: KVHeadsSpec) -> KVHeadsSpec:
    found = KVHeadsSpec(
        count=settings.integer("num_key_value_heads", usual.count),
        size=settings.integer("head_dim", usual.size),
    )
    hub.refuse_unknown(settings, ())
    return found


def _global_rope(fields: Fields, size: int) -> RopeSpec:
    settings = fields.section("rope_parameters").section(hub.FULL)
    kind = settings.text("rope_type", "proportional")
    share = settings.number("partial_rotary_factor", ROTATING if not settings.values else 1.0)
    factor = settings.number("factor", 1.0)
    kept = int(share * size // 2)
    if kind not in ("proportional", "default") or factor <= 0 or not 1 <= kept <= size // 2:
        raise UnsupportedModel(
            f"{settings.where}: rope_type {kind!r} by {factor:g}, over {share:g} of a head, is not "
            "served; proportional is, by a positive factor, over a share up to 1"
        )
    hub.refuse_unknown(settings, hub.ROPE_HARMLESS | {"rope_theta"})
    theta = settings.number("rope_theta", THETA)
    if kind == "default":
        return RopeSpec(theta=theta, dims=size)
    scaling = RopeScaling(kind="proportional", factor=factor, kept=kept)
    return RopeSpec(theta=theta, dims=size, scaling=scaling)


def _local_rope(fields: Fields, size: int) -> RopeSpec:
    return hub.local_rope(fields, size, LOCAL_THETA)


def _experts(fields: Fields) -> ExpertsSpec | None:
    keys = ("num_experts", "top_k_experts", "moe_intermediate_size")
    if not fields.flag("enable_moe_block", False):
        fields.ignore(*keys)
        return None
    return ExpertsSpec(
        **bounds.expert_counts(fields, *keys[:2]),
        inner=fields.integer(keys[2]),
        expert_scales=True,
        beside=True,
    )


HUB_NAMES = TensorNames(
    modules={
        **NORM_NAMES.modules,
        "post_per_layer_input_norm": "per_layer_input_norm",
        "layer_scalar": "output_scale.weight",
        "router.proj": "mlp.router",
        "router.scale": "mlp.router_norm.weight",
        "router.per_expert_scale": "mlp.router.scales.weight",
        "post_feedforward_layernorm_1": "dense_output_norm",
        "pre_feedforward_layernorm_2": "experts_norm",
        "post_feedforward_layernorm_2": "experts_output_norm",
    },
    stacked={
        "experts.gate_up_proj": ("mlp.experts.*.gate_proj", "mlp.experts.*.up_proj"),
        "experts.down_proj": ("mlp.experts.*.down_proj",),
    },
)


def read_gguf(model: GGUFMetadata) -> ModelConfig:
    """Raises UnsupportedModel."""
    keys, kinds = model.keys, model.layer_kinds()
    inner, kv_heads = (
        model.in_each_layer(key) for key in ("feed_forward_length", "attention.head_count_kv")
    )
    dims = {
        hub.FULL: keys.integer("attention.key_length"),
        hub.SLIDING: keys.integer("attention.key_length_swa"),
    }
    keys.ignore("attention.value_length_swa")  # of keys, too
    usual = KVHeadsSpec(
        count=kv_heads[kinds.index(hub.SLIDING) if hub.SLIDING in kinds else 0],
        size=dims[hub.SLIDING],
    )
    sizes = model.sizes(intermediate_size=inner[0], num_kv_heads=usual.count, head_dim=usual.size)
    reads = kv_sources(kinds, keys.integer("attention.shared_kv_layers", 0), keys.where)
    window, experts = model.window(), _gguf_experts(model)
    layers = []
    for number, kind in enumerate(kinds):
        own = KVHeadsSpec(count=kv_heads[number], size=dims[kind])
        values = f"blk.{number}.attn_v.weight" in model.tensors
        attention = AttentionSpec(
            window=window if kind == hub.SLIDING else None,
            scale=1.0,
            rope=1 if kind == hub.SLIDING else 0,
            norm="head",
            kv_heads=None if own == usual else own,
            value_norm=True,
            values_of_keys=not values and reads[number] is None,
            reads=reads[number],
        )
        feed_forward = FeedForwardSpec(
            activation="gelu_tanh",
            inner=None if inner[number] == inner[0] else inner[number],
            experts=experts,
        )
        scaled = f"blk.{number}.layer_output_scale.weight" in model.tensors
        layers.append(
            LayerSpec(
                attention=attention,
                feed_forward=feed_forward,
                order="sandwich",
                output_scale=scaled,
            )
        )
    return ModelConfig(
        architecture="gemma4",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(
            model.rope(dims[hub.FULL], theta=THETA),
            model.rope(usual.size, theta=LOCAL_THETA, local=True),
        ),
        layers=hub.shared(layers),
        embedding_multiplier=sizes["hidden_size"] ** 0.5,
        logits_soft_cap=keys.optional_number("final_logit_softcapping"),
        per_layer_inputs=model.layer_inputs(),
    )


def _gguf_experts(model: GGUFMetadata) -> ExpertsSpec | None:
    if not model.keys.integer("expert_count", 0):
        return None
    inner = model.keys.integer("expert_feed_forward_length")
    return ExpertsSpec(**model.expert_counts(), inner=inner, expert_scales=True, beside=True)


GGUF_NAMES = TensorNames(
    stacked={
        "mlp.stacked.gate_up_proj": ("mlp.experts.*.gate_proj", "mlp.experts.*.up_proj"),
        **{
            f"mlp.stacked.{name}": (f"mlp.experts.*.{name}",)
            for name in ("gate_proj", "up_proj", "down_proj")
        },
    }
)

GEMMA4 = Family(
    "gemma4",
    ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
    "Gemma 4 (text)",
    _hub,
    hub_names=HUB_NAMES,
    gguf="gemma4",
    read_gguf=read_gguf,
    gguf_names=GGUF_NAMES,
)
