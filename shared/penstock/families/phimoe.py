"""Phi-3.5-MoE: layers with layer norms and biases, and experts that SparseMixer chooses.

Its rotation is stretched as Phi-3's is, but config.json says what cosines and sines are multiplied
by. GGUF files don't: they have what Phi-3's formula makes of the lengths.

Sources: Abdin et al., "Phi-3 technical report", 2024; Liu et al., "GRIN: gradient-informed MoE",
2024, and the makers' modeling_phimoe.py.
"""

from __future__ import annotations

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.family import Family, TensorNames
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.mistral import MIXTRAL_MODULES
from penstock.families.qwen3 import GGUF_NAMES
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

CHOICES = 2
"""Experts of a token: the makers' code has no other number."""
JITTER = 0.01
"""The makers' router_jitter_noise, half of what the best expert may be ahead of one that counts."""
MSCALE = 1.243163121016122
"""What cosines and sines of the stretched release are multiplied by."""
MSCALES = ("short_mscale", "long_mscale")


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    hub.only(fields, num_experts_per_tok=CHOICES)
    fields.ignore("input_jitter_noise")  # of training
    sizes, bias = hub.sizes(fields), fields.flag("attention_bias", False)
    window = hub.window(fields) if "sliding_window" in fields else None
    experts = _experts(
        **hub.expert_counts(fields, "num_local_experts"),
        inner=sizes["intermediate_size"],
        jitter=fields.number("router_jitter_noise", JITTER),
    )
    if experts.nearness < 0:
        raise fields.wrong("router_jitter_noise", "a number that isn't negative")
    return ModelConfig(
        architecture="phimoe",
        **sizes,
        norm=NormSpec(kind="layer", eps=fields.number("rms_norm_eps", 1e-5), bias=True),
        ropes=(_rope(fields, sizes["head_dim"]),),
        layers=(_layer(experts, window, bias, bias),),
        head_bias=fields.flag("lm_head_bias", False),
    )


def _experts(*, count: int, active: int, inner: int, jitter: float = JITTER) -> ExpertsSpec:
    return ExpertsSpec(
        count=count,
        active=active,
        inner=inner,
        router="sparse_mixer",
        nearness=2 * jitter,
        normalised=False,
    )


def _layer(experts: ExpertsSpec, window: int | None, qkv_bias: bool, output: bool) -> LayerSpec:
    return LayerSpec(
        attention=AttentionSpec(window=window, qkv_bias=qkv_bias, output_bias=output),
        feed_forward=FeedForwardSpec(experts=experts),
    )


def _rope(fields: Fields, head_dim: int) -> RopeSpec:
    found = hub.rope(fields, head_dim, theta=1_000_000.0, harmless=MSCALES)
    if found.scaling is None:
        return found
    settings = fields.section("rope_parameters" if "rope_parameters" in fields else "rope_scaling")
    if found.scaling.kind != "longrope":
        raise UnsupportedModel(
            f"{settings.where}: RoPE scaling {found.scaling.kind!r} is not served; longrope is"
        )
    short, long = (settings.number(key) for key in MSCALES)
    if short != long:  # A model is served with one of them (see RopeScaling).
        raise UnsupportedModel(
            f"{settings.where}: short_mscale {short:g} and long_mscale {long:g} differ; equal ones "
            "are served"
        )
    return _multiplied(found, short)


def _multiplied(rope: RopeSpec, by: float) -> RopeSpec:
    if rope.scaling is None:
        return rope
    scaling = msgspec.structs.replace(rope.scaling, attention_factor=by)
    return msgspec.structs.replace(rope, scaling=scaling)


def _gguf(model: GGUFMetadata) -> ModelConfig:
    sizes, counts = model.sizes(), model.expert_counts()
    if counts["active"] != CHOICES:
        raise model.keys.wrong("expert_used_count", str(CHOICES))
    experts = _experts(**counts, inner=sizes["intermediate_size"])
    bias, output = model.has("attn_q.bias"), model.has("attn_output.bias")
    return ModelConfig(
        architecture="phimoe",
        **sizes,
        norm=NormSpec(kind="layer", eps=model.rms_eps(), bias=True),
        ropes=(_multiplied(model.long_rope(sizes["head_dim"]), MSCALE),),
        layers=(_layer(experts, model.window(), bias, output),),
        head_bias="output.bias" in model.tensors,
    )


PHIMOE = Family(
    "phimoe",
    ("PhimoeForCausalLM", "PhiMoEForCausalLM"),
    "Phi-3.5-MoE",
    _hub,
    hub_names=TensorNames(MIXTRAL_MODULES),
    gguf="phimoe",
    read_gguf=_gguf,
    gguf_names=GGUF_NAMES,
)
