"""Meta's Muse Glimmer: three of four layers in a window, the others without positions, counted from
the last one; norms without weights of embeddings, queries and keys, and norms before and after each
half, the latter with an epsilon of their own; attention's output gated number by number.

Source: Meta, "Muse Glimmer 30B", 2026; what it computes, as transformers' class and llama.cpp have
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata, rounded
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import LayerSpec, NormSpec
from penstock.model.rope_spec import RopeSpec
from penstock_families.afmoe import GATE

ROPES = "layer_rope_theta"
OUTPUT_EPS = 1e-8
"""What releases have, and GGUF files don't say."""


def _model(
    sizes: dict[str, Any],
    windows: Sequence[int | None],
    turning: Sequence[bool],
    *,
    norm: NormSpec,
    rope: RopeSpec,
    scale: float | None,
    logits: tuple[float, float | None],
) -> ModelConfig:
    """windows, turning: each layer's, and whether it rotates. scale: of scores. logits: their
    multiplier and their soft cap."""
    layers = [
        LayerSpec(
            attention=AttentionSpec(
                window=window,
                rope=0 if turns else None,
                norm="head",
                scale=scale,
                output_gate=True,
                gate_apart=True,
            ),
            order="sandwich",
        )
        for window, turns in zip(windows, turning, strict=True)
    ]
    return ModelConfig(
        architecture="muse_glimmer",
        **sizes,
        norm=norm,
        ropes=(rope,),
        layers=hub.shared(layers),
        embedding_norm=True,
        logits_multiplier=logits[0],
        logits_soft_cap=logits[1],
    )


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu", key="hidden_activation")
    hub.only(fields, attention_bias=False)
    sizes = hub.sizes(fields, default_head_dim=128)
    count, size = sizes["num_layers"], sizes["head_dim"]
    usual = [hub.FULL if (count - 1 - number) % 4 == 0 else hub.SLIDING for number in range(count)]
    window = hub.window(fields.completed(sliding_window=2048))
    kinds = hub.layer_kinds(fields, count, usual)
    rope = hub.rope(fields, size)
    return _model(
        sizes,
        [window if kind == hub.SLIDING else None for kind in kinds],
        _turning(fields, rope, usual),
        norm=NormSpec(
            eps=fields.number("rms_norm_eps", 1e-5),
            plus_one=True,
            plus_one_in_layers=True,
            output_eps=fields.number("post_norm_eps", OUTPUT_EPS),
        ),
        rope=rope,
        scale=size**-0.5 * fields.positive("qk_scale_factor", 3.87),
        logits=(
            fields.positive("output_multiplier", 0.19611613513818404),
            fields.positive("final_logit_softcapping", 20.0),
        ),
    )


def _turning(fields: Fields, rope: RopeSpec, usual: Sequence[str]) -> list[bool]:
    """Whether each layer rotates: its base is the model's, and not 0."""
    if ROPES not in fields:
        return [kind == hub.SLIDING for kind in usual]
    listed = fields.values[ROPES]
    fields.ignore(ROPES)  # asked for here
    if not isinstance(listed, list) or len(listed) != len(usual):
        raise fields.wrong(ROPES, f"a list of {len(usual)} numbers")
    if any(base not in (0, rope.theta) for base in listed):
        raise fields.wrong(ROPES, f"a list of 0 and {rope.theta:g}")
    return [base != 0 for base in listed]


def _gguf(model: GGUFMetadata) -> ModelConfig:
    """The norms of queries have the factor of scores; layers with a window rotate."""
    sizes, keys = model.sizes(), model.keys
    kinds = model.layer_kinds()
    window = keys.integer("attention.sliding_window")
    return _model(
        sizes,
        [window if kind == hub.SLIDING else None for kind in kinds],
        [kind == hub.SLIDING for kind in kinds],
        norm=NormSpec(eps=model.rms_eps(), output_eps=OUTPUT_EPS),
        rope=model.rope(sizes["head_dim"]),
        scale=None,
        logits=(
            rounded(keys.positive("logit_scale")),
            rounded(keys.number("final_logit_softcapping", 0.0)) or None,
        ),
    )


MUSE_GLIMMER = Family(
    "muse_glimmer",
    ("MuseGlimmerForCausalLM", "MuseGlimmerForConditionalGeneration"),
    "Muse Glimmer (text)",
    _hub,
    hub_names=TensorNames(
        {
            "self_attn.gate_proj": GATE,
            "post_attention_layernorm": "attention_output_norm",
            "pre_feedforward_layernorm": "post_attention_layernorm",
            "post_feedforward_layernorm": "feed_forward_output_norm",
        },
        unit_norms=True,
    ),
    gguf="muse-glimmer",
    read_gguf=_gguf,
    gguf_names=TensorNames({"recurrent.in_proj_z": GATE}, unit_norms=True, pairs_adjacent=True),
)
