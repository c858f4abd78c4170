"""Qwen3-Next and the decoder of Qwen3.5: three of four layers are gated delta nets, and the others
attend, with a gate of the output and a quarter of each head rotating.

Source: Qwen team, "Qwen3-Next", 2025; Yang et al., "Gated delta networks", 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from penstock.errors import UnsupportedModel
from penstock.families import bounds
from penstock.families import hub_reading as hub
from penstock.families import recurrent_reading as recurrent
from penstock.families.family import BESIDE_THE_LAYERS, Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.qwen3 import GGUF_NAMES as GGUF_EXPERTS
from penstock.families.source import GGUFSource, decoder
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec, NormSpec
from penstock.model.recurrent_spec import GatedDeltaSpec, RecurrentSpec

SHARE = 0.25
"""Share of a head that rotates, where config.json doesn't say."""

OF_MEDIA = ("mrope_section", "mrope_interleaved")
"""How positions in pictures are dealt out to a head's numbers. Text has only one position."""

OF_DRAFTS = ("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mtp_loss_weight")


def _hub_next(fields: Fields) -> ModelConfig:
    sizes = hub.sizes(fields, default_head_dim=256)
    experts = _experts(fields, normalised=fields.flag("norm_topk_prob", True))
    sparse = hub.sparse_layers(fields, sizes["num_layers"])
    feed_forwards = [FeedForwardSpec(experts=experts if each else None) for each in sparse]
    return _model(fields, "qwen3_next", sizes, feed_forwards)


def _hub_dense(fields: Fields) -> ModelConfig:
    sizes = hub.sizes(fields, default_head_dim=256)
    return _model(fields, "qwen3_5", sizes, [FeedForwardSpec()] * sizes["num_layers"])


def _hub_moe(fields: Fields) -> ModelConfig:
    # No layer is dense.
    inner = fields.integer("moe_intermediate_size")
    sizes = hub.sizes(fields.completed(intermediate_size=inner), default_head_dim=256)
    feed_forward = FeedForwardSpec(experts=_experts(fields, normalised=True))
    fields.ignore("norm_topk_prob", "mlp_only_layers", "decoder_sparse_step")
    return _model(fields, "qwen3_5_moe", sizes, [feed_forward] * sizes["num_layers"])


def _experts(fields: Fields, *, normalised: bool) -> ExpertsSpec:
    return ExpertsSpec(
        **hub.expert_counts(fields, "num_experts", "num_local_experts"),
        inner=fields.integer("moe_intermediate_size"),
        normalised=normalised,
        shared_inner=fields.integer("shared_expert_intermediate_size"),
        shared_gate=True,
    )


def _model(
    fields: Fields, name: str, sizes: dict[str, Any], feed_forwards: Sequence[FeedForwardSpec]
) -> ModelConfig:
    hub.activation(fields, "silu")
    fields.ignore(*OF_DRAFTS, "mamba_ssm_dtype")  # states are float32 here
    hub.only(fields, attn_output_gate=True, output_gate_type="swish", use_sliding_window=False)
    count, bias = sizes["num_layers"], fields.flag("attention_bias", False)
    default = recurrent.every_nth_full(fields, count)
    kinds = recurrent.layer_kinds(fields, count, default, recurrent.FULL, recurrent.LINEAR)
    delta = recurrent.gated_delta(fields)
    attention = AttentionSpec(norm="head", output_gate=True, qkv_bias=bias, output_bias=bias)
    layers = [
        LayerSpec(
            attention=attention,
            recurrent=None if kind == recurrent.FULL else delta,
            feed_forward=feed_forward,
        )
        for kind, feed_forward in zip(kinds, feed_forwards, strict=True)
    ]
    return ModelConfig(
        architecture=name,
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6), plus_one=True),
        ropes=(hub.rope(fields, sizes["head_dim"], share=SHARE, harmless=OF_MEDIA),),
        layers=hub.shared(layers),
    )


MODULES = {
    "mlp.gate": "mlp.router",
    "self_attn.q_proj": "self_attn.q_and_gate_proj",
    "linear_attn.conv1d": "recurrent.conv",
    **{
        f"linear_attn.{each}": f"recurrent.{each}"
        for each in (
            "in_proj_qkvz",
            "in_proj_ba",
            "in_proj_qkv",
            "in_proj_z",
            "in_proj_b",
            "in_proj_a",
            "A_log",
            "dt_bias",
            "norm",
            "out_proj",
        )
    },
}
QUERIES_AND_GATES = "self_attn.q_and_gate_proj"
NEXT_NAMES = TensorNames(
    MODULES,
    by_head=frozenset({QUERIES_AND_GATES, "recurrent.in_proj_qkvz", "recurrent.in_proj_ba"}),
)
NAMES = TensorNames(
    MODULES,
    stacked={
        "mlp.experts.gate_up_proj": ("mlp.experts.*.gate_proj", "mlp.experts.*.up_proj"),
        "mlp.experts.down_proj": ("mlp.experts.*.down_proj",),
    },
    by_head=frozenset({QUERIES_AND_GATES}),
)


def _gguf_next(model: GGUFMetadata) -> ModelConfig:
    return _gguf(model, "qwen3_next", tiled=False)


def _gguf_dense(model: GGUFMetadata) -> ModelConfig:
    return _gguf(model, "qwen3_5", tiled=True)


def _gguf_moe(model: GGUFMetadata) -> ModelConfig:
    return _gguf(model, "qwen3_5_moe", tiled=True)


def _gguf(model: GGUFMetadata, name: str, *, tiled: bool) -> ModelConfig:
    """tiled: whether the converter has dealt out value heads in turn to key heads, in all matrices.
    Its norms have the 1 added."""
    keys = model.keys
    count, every = bounds.layers_without_drafts(keys), keys.integer("full_attention_interval", 4)
    kinds = recurrent.every_nth(every, count, keys.where)
    delta, feed_forward = _gguf_delta(keys, tiled=tiled), FeedForwardSpec()
    if keys.integer("expert_count", 0):
        inner = keys.integer("expert_feed_forward_length")
        model = replace(model, keys=keys.completed(feed_forward_length=inner))
        experts = ExpertsSpec(
            **model.expert_counts(),
            inner=inner,
            shared_inner=keys.integer("expert_shared_feed_forward_length"),
            shared_gate=True,
        )
        feed_forward = FeedForwardSpec(experts=experts)
    layers = [
        LayerSpec(
            attention=AttentionSpec(norm="head", output_gate=True),
            recurrent=None if kind == recurrent.FULL else delta,
            feed_forward=feed_forward,
        )
        for kind in kinds
    ]
    sizes = model.sizes() | {"num_layers": count}
    return decoder(
        GGUFSource(model),
        name,
        sizes,
        layers,
        rope=model.with_sections(model.rope(sizes["head_dim"]), interleaved=True),
    )


def _gguf_delta(keys: Fields, *, tiled: bool) -> RecurrentSpec:
    heads, values = keys.integer("ssm.time_step_rank"), keys.integer("ssm.inner_size")
    if heads < 1 or values % heads:
        raise UnsupportedModel(
            f"{keys.where}: {heads} value heads don't make up the inner size {values}"
        )
    spec = GatedDeltaSpec(
        key_heads=keys.integer("ssm.group_count"),
        value_heads=heads,
        key_dim=keys.integer("ssm.state_size"),
        value_dim=values // heads,
        kernel=keys.integer("ssm.conv_kernel"),
        tiled=tiled,
    )
    return recurrent.checked(spec, keys.where)


GGUF_NAMES = TensorNames(
    {
        "attention_output_norm": "post_attention_layernorm",
        "self_attn.qkv_proj": "recurrent.in_proj_qkv",
        "self_attn.q_proj": QUERIES_AND_GATES,
    },
    stacked={
        **GGUF_EXPERTS.stacked,
        "mlp.stacked.gate_up_proj": ("mlp.experts.*.gate_proj", "mlp.experts.*.up_proj"),
    },
    by_head=frozenset({QUERIES_AND_GATES, "recurrent.in_proj_ba"}),
    layers_for_drafts=True,
)

QWEN3_NEXT = Family(
    "qwen3_next",
    ("Qwen3NextForCausalLM",),
    "Qwen3-Next",
    _hub_next,
    hub_names=NEXT_NAMES,
    gguf="qwen3next",
    read_gguf=_gguf_next,
    gguf_names=GGUF_NAMES,
    own_head=BESIDE_THE_LAYERS,
)
QWEN3_5 = Family(
    "qwen3_5",
    ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
    "Qwen3.5",
    _hub_dense,
    hub_names=NAMES,
    gguf="qwen35",
    read_gguf=_gguf_dense,
    gguf_names=GGUF_NAMES,
    own_head=BESIDE_THE_LAYERS,
)
QWEN3_5_MOE = Family(
    "qwen3_5_moe",
    ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
    "Qwen3.5-MoE",
    _hub_moe,
    hub_names=NAMES,
    gguf="qwen35moe",
    read_gguf=_gguf_moe,
    gguf_names=GGUF_NAMES,
    own_head=BESIDE_THE_LAYERS,
)
