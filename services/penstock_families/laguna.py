"""Laguna: most layers see a short window, with a rotation and a number of query heads of their own;
a softplus weighs what each head gives. Experts are chosen by corrected sigmoid scores, plus a
shared one.

Source: Poolside, "Laguna XS.2", 2026.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.errors import UnsupportedModel
from penstock.families import bounds
from penstock.families import hub_reading as hub
from penstock.families.deepseek import GGUF_NAMES, NAMES
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.recurrent_reading import gguf_per_layer
from penstock.families.source import GGUFSource, HubSource, decoder
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec
from penstock.model.rope_spec import RopeSpec
from penstock_families.step3p5 import GATES as GATES_NAME
from penstock_families.step3p5 import gguf_experts

GATES = ("per-head", "per_head", True)
"""What `gating` and `gating_types` call a gate of each head."""
OWN_HEADS = "num_attention_heads_per_layer"
ROPE, SHARE = "rope_parameters", "partial_rotary_factor"
THETAS = {hub.FULL: (500_000.0, 0.5), hub.SLIDING: (10_000.0, 1.0)}
"""Base, and which share of a head rotates, where config.json has no rotation."""


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    hub.only(fields, moe_apply_router_weight_on_input=False, moe_router_logit_softcapping=0.0)
    fields.ignore("sliding_window")  # stated even where no layer has one
    _check_gates(fields)
    sizes = hub.sizes(fields, default_head_dim=128)
    count, bias = sizes["num_layers"], fields.flag("attention_bias", False)
    kinds = hub.layer_kinds(fields, count, [hub.FULL] * count)
    present = [kind for kind in (hub.FULL, hub.SLIDING) if kind in kinds]
    window = hub.window(fields) if hub.SLIDING in kinds else None
    heads = _query_heads(fields, count, sizes["num_kv_heads"])
    experts = ExpertsSpec(
        **bounds.expert_counts(fields, "num_experts", "num_experts_per_tok"),
        inner=fields.integer("moe_intermediate_size", 512),
        router="sigmoid",
        correction=True,
        scale=fields.positive("moe_routed_scaling_factor", 1.0),
        shared_inner=fields.integer("shared_expert_intermediate_size", 512),
    )
    layers = [
        LayerSpec(
            attention=AttentionSpec(
                norm="head",
                head_gate=True,
                soft_gate=True,
                rope=present.index(kind),
                window=window if kind == hub.SLIDING else None,
                query_heads=None if own == sizes["num_heads"] else own,
                qkv_bias=bias,
                output_bias=bias,
            ),
            feed_forward=FeedForwardSpec(experts=experts if sparse else None),
        )
        for kind, own, sparse in zip(kinds, heads, hub.sparse_behind(fields, count), strict=True)
    ]
    ropes = tuple(_rope(fields, kind, sizes["head_dim"]) for kind in present)
    return decoder(HubSource(fields), "laguna", sizes, layers, ropes=ropes)


def _check_gates(fields: Fields) -> None:
    """Raises UnsupportedModel unless each head has one gate."""
    fields.ignore("gating", "gating_types")  # asked for here
    each = fields.values.get("gating_types") or []
    if fields.values.get("gating", True) not in GATES:
        raise fields.wrong("gating", "'per-head'")
    if not isinstance(each, list) or any(kind not in GATES for kind in each):
        raise fields.wrong("gating_types", "a list of 'per_head'")


def _query_heads(fields: Fields, count: int, kv_heads: int) -> list[int]:
    """How many query heads each layer has."""
    if OWN_HEADS not in fields:
        return [fields.integer("num_attention_heads")] * count
    found = fields.listed(OWN_HEADS, int)
    fit = all(each > 0 and kv_heads > 0 and each % kv_heads == 0 for each in found)
    if len(found) != count or not fit:
        raise fields.wrong(OWN_HEADS, f"a list of {count} multiples of {kv_heads}")
    return found


def _rope(fields: Fields, kind: str, size: int) -> RopeSpec:
    """Returns the rotation of a layer kind. A key that its section lacks isn't taken from the outer
    level."""
    theta, share = THETAS[kind]
    section = fields.section(ROPE)
    if not section.values:
        section = Fields({kind: {"rope_theta": theta, SHARE: share}}, fields.where)
    if kind not in section:
        raise section.wrong(kind, "an object")
    own = section.section(kind).values
    plain = fields.without(SHARE, "rope_theta", "rope_scaling")
    return hub.rope(plain.replaced({ROPE: own}), size, theta=theta, share=1.0)


PATTERN, HEADS = "attention.sliding_window_pattern", "attention.head_count"
PERIOD = 4
"""Layers from one that sees everything to the next, the first of all among them, where a GGUF file
doesn't say."""


def _gguf(model: GGUFMetadata) -> ModelConfig:
    keys = model.keys
    count = bounds.layer_count(keys, "block_count")
    heads = gguf_per_layer(keys, HEADS, count)
    sizes = replace(model, keys=keys.replaced({HEADS: heads[0]})).sizes()
    keys.ignore("leading_dense_block_count")  # tensors say it
    gate = model.tensors.get("blk.0.attn_gate.weight")
    if gate is None or gate.shape[0] != heads[0]:
        raise UnsupportedModel(f"{keys.where}: attn_gate must have a gate for each head")
    window, full = model.window(), model.rope(sizes["head_dim"])
    sliding = [window is not None and each for each in _gguf_sliding(keys, count)]
    several = any(sliding) and not all(sliding)
    local = model.rope(sizes["head_dim"], theta=full.theta, local=True) if any(sliding) else full
    layers = [
        LayerSpec(
            attention=AttentionSpec(
                norm="head",
                head_gate=True,
                soft_gate=True,
                rope=1 if slides and several else 0,
                window=window if slides else None,
                query_heads=None if own == heads[0] else own,
            ),
            feed_forward=FeedForwardSpec(experts=experts),
        )
        for slides, own, experts in zip(sliding, heads, gguf_experts(model, count), strict=True)
    ]
    ropes = (full, local) if several else (local,)
    return decoder(GGUFSource(model), "laguna", sizes, layers, ropes=ropes)


def _gguf_sliding(keys: Fields, count: int) -> list[bool]:
    if not isinstance(keys.values.get(PATTERN), list):
        period = keys.integer(PATTERN, PERIOD)
        return [period > 1 and number % period != 0 for number in range(count)]
    found = keys.listed(PATTERN, bool)
    if len(found) != count:
        raise keys.wrong(PATTERN, f"a list of {count} flags")
    return found


LAGUNA = Family(
    "laguna",
    ("LagunaForCausalLM",),
    "Laguna",
    _hub,
    hub_names=TensorNames(
        {
            **NAMES.modules,
            "mlp.experts.e_score_correction_bias": "mlp.router.correction",
            "self_attn.g_proj": GATES_NAME,
        },
        stacked={
            "mlp.experts.gate_up_proj": ("mlp.experts.*.gate_proj", "mlp.experts.*.up_proj"),
            "mlp.experts.down_proj": ("mlp.experts.*.down_proj",),
        },
        layers_for_drafts=True,
    ),
    gguf="laguna",
    read_gguf=_gguf,
    gguf_names=TensorNames({"recurrent.in_proj_z": GATES_NAME}, stacked=GGUF_NAMES.stacked),
)
