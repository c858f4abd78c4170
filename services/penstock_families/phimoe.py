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
from penstock.families.family import Family
from penstock.families.mistral import MIXTRAL_MODULES
from penstock.families.qwen3 import GGUF_NAMES
from penstock.families.source import OUTPUT, QUERY, GGUFSource, Source, decoder, of_gguf, of_hub
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec, NormSpec
from penstock.model.rope_spec import RopeSpec

CHOICES = 2
"""Experts of a token: the makers' code has no other number."""
JITTER = 0.01
"""The makers' router_jitter_noise, half of what the best expert may be ahead of one that counts."""
MSCALE = 1.243163121016122
"""What cosines and sines of the stretched release are multiplied by."""
MSCALES = ("short_mscale", "long_mscale")


def _read(source: Source) -> ModelConfig:
    source.activation("silu")
    source.only(num_experts_per_tok=CHOICES)
    source.ignore("input_jitter_noise")  # of training
    sizes, counts = source.sizes(), source.expert_counts("num_local_experts")
    if counts["active"] != CHOICES:
        raise source.fields.wrong("expert_used_count", str(CHOICES))
    jitter = source.number("router_jitter_noise", JITTER)
    if jitter < 0:
        raise source.fields.wrong("router_jitter_noise", "a number that isn't negative")
    experts = ExpertsSpec(
        **counts,
        inner=sizes["intermediate_size"],
        router="sparse_mixer",
        nearness=2 * jitter,
        normalised=False,
    )
    layer = LayerSpec(
        attention=AttentionSpec(
            window=source.window(), qkv_bias=source.bias(QUERY), output_bias=source.bias(OUTPUT)
        ),
        feed_forward=FeedForwardSpec(experts=experts),
    )
    if isinstance(source, GGUFSource):
        rope = _multiplied(source.model.long_rope(sizes["head_dim"]), MSCALE)
        bias = "output.bias" in source.model.tensors
    else:
        rope = _rope(source.fields, sizes["head_dim"])
        bias = source.flag("lm_head_bias", False)
    norm = NormSpec(kind="layer", eps=source.eps(1e-5), bias=True)
    return decoder(source, "phimoe", sizes, [layer], norm=norm, rope=rope, head_bias=bias)


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


PHIMOE = Family(
    "phimoe",
    ("PhimoeForCausalLM", "PhiMoEForCausalLM"),
    "Phi-3.5-MoE",
    of_hub(_read),
    hub_names=TensorNames(MIXTRAL_MODULES),
    gguf="phimoe",
    read_gguf=of_gguf(_read),
    gguf_names=GGUF_NAMES,
)
