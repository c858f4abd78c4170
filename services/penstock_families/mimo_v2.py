"""MiMo-V2-Flash: five of six layers see a short window, with sinks and more key heads; values are
shorter than keys, and a third of each head rotates. Experts are DeepSeek-V3's, without a shared
one.

Source: Xiaomi, "MiMo-V2-Flash technical report", 2026.
"""

from __future__ import annotations

from dataclasses import replace

from msgspec.structs import replace as struct_replace

from penstock.errors import UnsupportedModel
from penstock.families import bounds
from penstock.families import hub_reading as hub
from penstock.families.deepseek import GGUF_NAMES, NAMES, corrected_experts, gguf_experts
from penstock.families.family import JOIN, Family, OwnHead
from penstock.families.gguf_reading import GGUFMetadata, rounded
from penstock.families.recurrent_reading import GGUF_KV_HEADS, GGUF_SIGMOID, gguf_per_layer
from penstock.families.source import GGUFSource, decoder
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec, KVHeadsSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import FeedForwardSpec, LayerSpec, NormSpec, RowFactors
from penstock.model.rope_spec import RopeSpec

SHARE = 0.334
"""Share of a head that rotates, where config.json doesn't say."""
PATTERN, EXPERTS_IN = "hybrid_layer_pattern", "moe_layer_freq"


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes = hub.sizes(fields, default_head_dim=192)
    count, size = sizes["num_layers"], sizes["head_dim"]
    hub.only(
        fields,
        attention_bias=False,  # values' would have to be filled up as well
        swa_num_attention_heads=sizes["num_heads"],
        swa_head_dim=size,
        swa_v_head_dim=fields.integer("v_head_dim", 128),
    )
    window = hub.window(fields)
    hub.only(fields, sliding_window_size=window)
    fields.ignore("attention_chunk_size")  # of training
    kinds, sparse = _kinds(fields, count), _sparse(fields, count)
    experts = corrected_experts(fields.without(EXPERTS_IN), scale=1.0)
    attention = {
        hub.FULL: _attention(fields, size, sizes["num_kv_heads"], full=True),
        hub.SLIDING: _attention(fields, size, sizes["num_kv_heads"], full=False),
    }
    scale = fields.number("attention_value_scale", 0.707)
    alike = KVHeadsSpec(count=sizes["num_kv_heads"], size=size)
    return ModelConfig(
        architecture="mimo_v2_flash",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", fields.number("layernorm_epsilon", 1e-5))),
        ropes=_ropes(fields, size),
        layers=hub.shared(
            LayerSpec(
                attention=attention[kind],
                feed_forward=FeedForwardSpec(experts=experts if has_experts else None),
                weight_factors=_scaled(attention[kind], alike, scale),
            )
            for kind, has_experts in zip(kinds, sparse, strict=True)
        ),
    )


def _attention(fields: Fields, size: int, kv_heads: int, *, full: bool) -> AttentionSpec:
    values = fields.integer("v_head_dim", 128)
    if not 1 <= values <= size:
        raise fields.wrong("v_head_dim", f"a number from 1 to the head's, {size},")
    shorter = None if values == size else values
    if full:
        sinks = fields.flag("add_full_attention_sink_bias", False)
        return AttentionSpec(value_size=shorter, sinks=sinks)
    count = fields.integer("swa_num_key_value_heads", 2 * kv_heads)
    heads = fields.integer("num_attention_heads")
    if count < 1 or heads % count:
        raise UnsupportedModel(
            f"{fields.where}: {heads} attention heads can't share {count} KV heads of layers with a"
            " window"
        )
    return AttentionSpec(
        window=hub.window(fields),
        rope=1,
        value_size=shorter,
        sinks=fields.flag("add_swa_attention_sink_bias", True),
        kv_heads=None if count == kv_heads else KVHeadsSpec(count=count, size=size),
    )


def _scaled(attention: AttentionSpec, alike: KVHeadsSpec, scale: float) -> tuple[RowFactors, ...]:
    """Values are multiplied where they are made. alike: heads of layers without their own."""
    heads = attention.kv_heads or alike
    if scale == 1.0:
        return ()
    rows = ((heads.count * (attention.value_size or heads.size), scale),)
    return (RowFactors(module="self_attn.v_proj", parts=rows),)


def _ropes(fields: Fields, size: int) -> tuple[RopeSpec, RopeSpec]:
    full = hub.rope(fields, size, kind=hub.FULL, theta=5_000_000.0, share=SHARE)
    theta = fields.number("swa_rope_theta", 10_000.0)
    if hub.SLIDING not in fields.section("rope_parameters"):
        return full, RopeSpec(theta=theta, dims=full.dims)
    return full, hub.rope(fields, size, kind=hub.SLIDING, theta=theta, share=SHARE)


def _kinds(fields: Fields, count: int) -> list[str]:
    if PATTERN in fields and "layer_types" not in fields:
        pattern = hub.flags(fields, PATTERN, count)
        return [hub.SLIDING if sliding else hub.FULL for sliding in pattern]
    default = [hub.SLIDING if number and (number + 1) % 6 else hub.FULL for number in range(count)]
    return hub.layer_kinds(fields, count, default)


def _sparse(fields: Fields, count: int) -> list[bool]:
    if EXPERTS_IN in fields and "mlp_layer_types" not in fields:
        return hub.flags(fields, EXPERTS_IN, count)
    return hub.sparse_behind(fields, count)


def _gguf(model: GGUFMetadata) -> ModelConfig:
    """llama.cpp takes the experts' weights for normalised sigmoids, whatever the file says."""
    keys = model.keys
    count = bounds.layers_without_drafts(keys)
    size, values = keys.integer("attention.key_length"), keys.integer("attention.value_length")
    kv_heads = gguf_per_layer(keys, GGUF_KV_HEADS, count)
    one_kind = {"attention.value_length": size, GGUF_KV_HEADS: kv_heads[0]}
    sizes = replace(model, keys=keys.replaced(one_kind)).sizes() | {"num_layers": count}
    if not 1 <= values <= size:
        raise keys.wrong("attention.value_length", f"a number from 1 to the keys', {size},")
    usual = KVHeadsSpec(count=kv_heads[0], size=size)
    rope, window = model.rope(size), keys.integer("attention.sliding_window")
    scale = rounded(keys.number("attention.value_scale", 1.0))
    feed_forwards = _gguf_feed_forwards(model, count)
    layers = []
    for number, sliding in enumerate(_gguf_sliding(keys, count)):
        heads = kv_heads[number]
        if heads < 1 or sizes["num_heads"] % heads:
            raise keys.wrong(GGUF_KV_HEADS, f"divisors of {sizes['num_heads']} heads")
        attention = AttentionSpec(
            window=window if sliding and window < sizes["max_position"] else None,
            rope=1 if sliding else 0,
            value_size=None if values == size else values,
            sinks=f"blk.{number}.attn_sinks.weight" in model.tensors,
            kv_heads=None if heads == usual.count else KVHeadsSpec(count=heads, size=size),
        )
        layers.append(
            LayerSpec(
                attention=attention,
                feed_forward=feed_forwards[number],
                weight_factors=_scaled(attention, usual, scale),
            )
        )
    local = RopeSpec(theta=keys.number("rope.freq_base_swa", rope.theta), dims=rope.dims)
    return decoder(GGUFSource(model), "mimo_v2_flash", sizes, layers, ropes=(rope, local))


def _gguf_sliding(keys: Fields, count: int) -> list[bool]:
    """Whether each layer has a window. Converters write numbers or flags, those of layers for
    drafts, too."""
    key = "attention.sliding_window_pattern"
    found = keys.values.get(key)
    keys.ignore(key)  # asked for here
    if not isinstance(found, list) or len(found) < count or set(found) - {0, 1}:
        raise keys.wrong(key, f"a list of at least {count} times 0 or 1")
    return [bool(each) for each in found[:count]]


def _gguf_feed_forwards(model: GGUFMetadata, count: int) -> list[FeedForwardSpec]:
    sparse = [f"blk.{number}.ffn_gate_inp.weight" in model.tensors for number in range(count)]
    if True not in sparse:
        return [FeedForwardSpec()] * count
    stated = {"expert_gating_func": GGUF_SIGMOID, "expert_weights_norm": True}
    of_experts = replace(model, keys=model.keys.replaced(stated))
    experts = gguf_experts(of_experts, f"blk.{sparse.index(True)}.exp_probs_b.bias")
    return [FeedForwardSpec(experts=experts if each else None) for each in sparse]


def _of_head(served: ModelConfig) -> LayerSpec:
    """A layer of the head sees a window, and has no experts."""
    each = (served.layer(number) for number in range(served.num_layers))
    short = next((layer for layer in each if layer.attention.window is not None), None)
    if short is None:
        raise UnsupportedModel(
            "the head's layers are as those of MiMo-V2 that see a window, and the model has none"
        )
    return struct_replace(short, feed_forward=FeedForwardSpec())


OWN_HEAD = OwnHead(
    "mtp.layers.{}.",
    {
        "mtp.layers.{}.enorm": "enorm",
        "mtp.layers.{}.hnorm": "hnorm",
        "mtp.layers.{}.eh_proj": JOIN,
        "mtp.layers.{}.final_layernorm": "norm",
    },
    normed_result=True,
    chained=False,
    spec=_of_head,
)
"""What it computes, as SGLang's model mimo_v2_flash_nextn and its worker of several layers have
it."""

MIMO_V2_FLASH = Family(
    "mimo_v2_flash",
    ("MiMoV2FlashForCausalLM",),
    "MiMo-V2-Flash",
    _hub,
    hub_names=TensorNames(
        {
            **NAMES.modules,
            "self_attn.sinks": "self_attn.sinks.weight",
            "self_attn.attention_sink_bias": "self_attn.sinks.weight",
            "pre_mlp_layernorm": "post_attention_layernorm",  # of the head
        }
    ),
    gguf="mimo2",
    read_gguf=_gguf,
    gguf_names=TensorNames(stacked=GGUF_NAMES.stacked, layers_for_drafts=True),
    own_head=OWN_HEAD,
)
