"""Jamba: one of several layers attends, without rotation, and the others are Mamba 1, whose maps
and steps in time are normed. Some have experts, weighed by their parts of a softmax over all.

Source: Lieber et al., "Jamba: a hybrid transformer-Mamba language model", 2024.
"""

from __future__ import annotations

from typing import Any

from penstock.families import bounds
from penstock.families import hub_reading as hub
from penstock.families import recurrent_reading as recurrent
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.mamba import PARTS, gguf_mamba1, time_rank
from penstock.families.qwen3 import GGUF_NAMES as GGUF_EXPERTS
from penstock.families.source import GGUFSource, HubSource, decoder
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec
from penstock.model.recurrent_spec import Mamba1Spec, RecurrentSpec

MAX_POSITION = 1 << 18
"""Tokens of a sequence, where config.json doesn't say: the first release calls it n_ctx."""
OF_COMPUTATION = (
    "calc_logits_for_entire_prompt",
    "num_logits_to_keep",
    "output_router_logits",
    "router_aux_loss_coef",
    "use_associative_scan",
    "use_mamba_kernels",
    "use_mambapy",
)


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    fields.ignore(*OF_COMPUTATION)
    hub.only(fields, mamba_inner_layernorms=True)
    longest = fields.integer("n_ctx", MAX_POSITION)
    sizes = hub.sizes(fields.completed(max_position_embeddings=longest))
    eps = fields.number("rms_norm_eps", 1e-6)
    count, experts = sizes["num_layers"], None
    if fields.integer("num_experts", 16) > 1:
        counts = fields.completed(num_experts=16, num_experts_per_tok=2)
        experts = _experts(hub.expert_counts(counts, "num_experts"), sizes["intermediate_size"])
    attends = _every(fields, "attn_layer", 8, 4, count)
    sparse = _every(fields, "expert_layer", 2, 1, count)
    layers = _layers(_mamba(fields, sizes["hidden_size"], eps), experts, attends, sparse)
    return decoder(HubSource(fields), "jamba", sizes, layers, ropes=())


def _every(fields: Fields, what: str, period: int, offset: int, count: int) -> list[bool]:
    """Whether each layer is one of every `period`. period, offset: defaults of config.json's."""
    period = fields.integer(f"{what}_period", period)
    offset = fields.integer(f"{what}_offset", offset)
    if not 0 <= offset < period:
        raise fields.wrong(f"{what}_offset", f"a number from 0 to {what}_period, {period}, less 1")
    return [number % period == offset for number in range(count)]


def _experts(counts: dict[str, Any], inner: int) -> ExpertsSpec:
    return ExpertsSpec(**counts, inner=inner, normalised=False)


def _mamba(fields: Fields, hidden: int, eps: float) -> RecurrentSpec:
    spec = Mamba1Spec(
        inner=fields.integer("mamba_expand", 2) * hidden,
        state=fields.integer("mamba_d_state", 16),
        kernel=fields.integer("mamba_d_conv", 4),
        rank=time_rank(fields, "mamba_dt_rank", hidden),
        conv_bias=fields.flag("mamba_conv_bias", True),
        bias=fields.flag("mamba_proj_bias", False),
        norms="weighed",
        norm_eps=eps,
    )
    return recurrent.checked(spec, fields.where)


def _layers(
    mamba: RecurrentSpec, experts: ExpertsSpec | None, attends: list[bool], sparse: list[bool]
) -> tuple[LayerSpec, ...]:
    return hub.shared(
        LayerSpec(
            attention=AttentionSpec(rope=None),
            recurrent=None if attending else mamba,
            feed_forward=FeedForwardSpec(experts=experts if has_experts else None),
        )
        for attending, has_experts in zip(attends, sparse, strict=True)
    )


def _gguf(model: GGUFMetadata) -> ModelConfig:
    keys, eps = model.keys, model.rms_eps()
    count = bounds.layer_count(keys, "block_count")
    kv_heads = recurrent.gguf_per_layer(keys, recurrent.GGUF_KV_HEADS, count)
    sizes = recurrent.gguf_of_one_size(model, count).sizes()
    sparse = [f"blk.{number}.ffn_gate_inp.weight" in model.tensors for number in range(count)]
    keys.ignore("expert_count", "expert_used_count")  # 1 where there are none
    experts = None
    if True in sparse:
        experts = _experts(model.expert_counts(), sizes["intermediate_size"])
    mamba = gguf_mamba1(model, count, norms="weighed", norm_eps=eps)
    layers = _layers(mamba, experts, [each > 0 for each in kv_heads], sparse)
    return decoder(GGUFSource(model), "jamba", sizes, layers, ropes=())


JAMBA = Family(
    "jamba",
    ("JambaForCausalLM",),
    "Jamba",
    _hub,
    hub_names=TensorNames(
        {
            "final_layernorm": "norm",
            "pre_ff_layernorm": "post_attention_layernorm",
            "feed_forward.router": "mlp.router",
            **{
                f"feed_forward.{each}{part}": f"mlp.{each}{part}"
                for each in ("", "experts.*.")
                for part in ("gate_proj", "up_proj", "down_proj")
            },
            "mamba.conv1d": "recurrent.conv",
            **{
                f"mamba.{each}": f"recurrent.{each}"
                for each in ("in_proj", "A_log", "D", "out_proj")
            },
            **{f"mamba.{theirs}": ours for theirs, ours in PARTS.items()},
        }
    ),
    gguf="jamba",
    read_gguf=_gguf,
    gguf_names=TensorNames(stacked=GGUF_EXPERTS.stacked),
)
