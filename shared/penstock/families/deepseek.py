"""DeepSeek V2, V3 and R1, Kimi K2 and GLM-4.7-Flash: attention over latents (MLA), and experts
chosen from the best groups, plus shared experts. Youtu-LLM: such attention, without experts.

Sources: DeepSeek-AI, "DeepSeek-V2", 2024, and "DeepSeek-V3 technical report", 2024; Tencent Youtu
Lab, "Youtu-LLM", 2025.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families import bounds
from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata, rounded
from penstock.families.source import HubSource, decoder, dense_first
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec, LatentSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, NormSpec
from penstock.model.rope_spec import RopeSpec

MAX_SIZE = 1 << 16
"""Most numbers of a latent, or of a part of a head."""


def _hub_v2(fields: Fields) -> ModelConfig:
    method = fields.text("topk_method", "greedy")
    one_of(fields, "topk_method", method, "greedy", "group_limited_greedy")
    one_of(fields, "scoring_func", fields.text("scoring_func", "softmax"), "softmax")
    if fields.flag("norm_topk_prob", False):
        raise UnsupportedModel(
            f"{fields.where}: norm_topk_prob true is not served in this family; false is"
        )
    if method == "greedy":
        fields.ignore("n_group", "topk_group")
    grouped = method != "greedy"
    experts = ExpertsSpec(
        **common_experts(fields, 1.0),
        groups=fields.integer("n_group", 1) if grouped else 1,
        active_groups=fields.integer("topk_group", 1) if grouped else 1,
        group_best=1,
        normalised=False,
    )
    return latent_model(
        fields, "deepseek_v2", experts, dense=fields.integer("first_k_dense_replace", 0)
    )


def _hub_v3(fields: Fields) -> ModelConfig:
    return latent_model(
        fields,
        "deepseek_v3",
        corrected_experts(fields, groups=8, active_groups=4, scale=2.5),
        dense=fields.integer("first_k_dense_replace", 3),
    )


def _hub_glm(fields: Fields) -> ModelConfig:
    experts = corrected_experts(fields, scale=1.8)
    return latent_model(fields, "glm4_moe_lite", experts, dense=dense_layers(fields, 1), eps=1e-5)


def _hub_youtu(fields: Fields) -> ModelConfig:
    fields.ignore("embedding_initializer_range")  # of training
    fields = fields.completed(
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
        tie_word_embeddings=True,
    )
    return latent_model(fields, "youtu", None, dense=0)


def dense_layers(fields: Fields, default: int) -> int:
    """Reads how many layers, the first ones, have no experts. Raises UnsupportedModel."""
    dense, key = fields.integer("first_k_dense_replace", default), "mlp_layer_types"
    if key not in fields:
        return dense
    kinds = fields.listed(key, str)
    dense = next((at for at, kind in enumerate(kinds) if kind != "dense"), len(kinds))
    layers = bounds.layer_count(fields, "num_hidden_layers")
    if kinds != ["dense"] * dense + ["sparse"] * (layers - dense):
        raise fields.wrong(key, "a list of 'dense', then of 'sparse',")
    return dense


def corrected_experts(
    fields: Fields, *, groups: int = 1, active_groups: int = 1, scale: float
) -> ExpertsSpec:
    """Reads experts as DeepSeek-V3 has them. The keywords are what transformers takes where a
    config.json doesn't say it. Raises UnsupportedModel."""
    one_of(fields, "topk_method", fields.text("topk_method", "noaux_tc"), "noaux_tc")
    one_of(fields, "scoring_func", fields.text("scoring_func", "sigmoid"), "sigmoid")
    return ExpertsSpec(
        **common_experts(fields, scale),
        router="sigmoid",
        correction=True,
        groups=fields.integer("n_group", groups),
        active_groups=fields.integer("topk_group", active_groups),
        normalised=fields.flag("norm_topk_prob", True),
    )


def common_experts(fields: Fields, scale: float) -> dict[str, Any]:
    """Fields of ExpertsSpec that all of these families read alike. scale: where a config.json
    doesn't say it. Raises UnsupportedModel."""
    # What training balanced, and what is for drafts only.
    fields.ignore("aux_loss_alpha", "seq_aux", "ep_size", "num_nextn_predict_layers")
    fields.ignore("num_mtp_layers")
    one_of(fields, "moe_layer_freq", fields.integer("moe_layer_freq", 1), 1)
    inner = fields.integer("moe_intermediate_size")
    return {
        **hub.expert_counts(fields, "n_routed_experts", "num_local_experts"),
        "inner": inner,
        "scale": fields.positive("routed_scaling_factor", scale),
        "shared_inner": inner * fields.integer("n_shared_experts", 0),
    }


def one_of(fields: Fields, key: str, found: object, *allowed: object) -> None:
    """Raises UnsupportedModel unless what was found at the key is allowed."""
    if found not in allowed:
        shown = " and ".join(map(repr, allowed))
        raise UnsupportedModel(f"{fields.where}: {key} is {found!r}; {shown} is served")


def latent_model(
    fields: Fields, name: str, experts: ExpertsSpec | None, *, dense: int, eps: float = 1e-6
) -> ModelConfig:
    """Reads a model whose first `dense` layers have no experts. experts: None if no layer has any.
    eps: where config.json doesn't say it. Raises UnsupportedModel."""
    hub.activation(fields, "silu")
    one_of(fields, "rope_interleave", fields.flag("rope_interleave", True), True)
    if experts is not None:
        bounds.check_expert_groups(fields, experts)
    latent = latent_of(fields)
    # The files' heads are those of the unabsorbed form.
    fields.ignore("head_dim", "num_key_value_heads", "qk_head_dim")
    sizes = hub.sizes(fields, default_head_dim=latent.rotating)
    sizes |= {"num_kv_heads": 1, "head_dim": latent.rank + latent.rotating}
    bias = fields.flag("attention_bias", False)
    rope = hub.rope(fields, latent.rotating)
    attention = AttentionSpec(
        latent=latent, scale=_scale(fields, latent, rope), qkv_bias=bias, output_bias=bias
    )
    if fields.flag("mlp_bias", False):
        raise UnsupportedModel(f"{fields.where}: mlp_bias true is not served; false is")
    layers = dense_first(attention, experts, dense, sizes["num_layers"])
    return decoder(HubSource(fields), name, sizes, layers, eps=eps, rope=rope)


def latent_of(fields: Fields) -> LatentSpec:
    """Reads the sizes of latents and heads. Raises UnsupportedModel."""
    sizes = {
        "rank": fields.integer("kv_lora_rank"),
        "rotating": fields.integer("qk_rope_head_dim"),
        "plain": fields.integer("qk_nope_head_dim"),
        "value": fields.integer("v_head_dim"),
    }
    return _checked(sizes, fields.integer("q_lora_rank", 0), fields.where)


def _checked(sizes: dict[str, int], query_rank: int, where: str) -> LatentSpec:
    if not (0 < min(sizes.values()) <= max(sizes.values()) <= MAX_SIZE):
        raise UnsupportedModel(
            f"{where}: sizes of latents and heads are {sizes}; 1 to {MAX_SIZE} are allowed"
        )
    if not 0 <= query_rank <= MAX_SIZE:
        raise UnsupportedModel(f"{where}: q_lora_rank is {query_rank}; 0 to {MAX_SIZE} are allowed")
    return LatentSpec(**sizes, query_rank=query_rank)


def _scale(fields: Fields, latent: LatentSpec, rope: RopeSpec) -> float:
    """Stretched positions sharpen the scores besides (mscale_all_dim)."""
    settings = fields.section("rope_parameters" if "rope_parameters" in fields else "rope_scaling")
    plain: float = (latent.plain + latent.rotating) ** -0.5
    by = settings.number("mscale_all_dim", 0.0)
    if rope.scaling is None or not by or rope.scaling.factor <= 1:
        return plain
    return plain * (0.1 * by * math.log(rope.scaling.factor) + 1.0) ** 2


def gguf_model(model: GGUFMetadata) -> ModelConfig:
    """Returns the config in a GGUF file of V2 or of the others: their files have the same
    architecture. Raises UnsupportedModel."""
    keys = model.keys
    latent = gguf_latent(keys)
    count = bounds.layers_without_drafts(keys)
    dense = keys.integer("leading_dense_block_count", 0)
    rope = model.rope(latent.rotating)
    scale: float = (latent.plain + latent.rotating) ** -0.5
    by = keys.number("rope.scaling.yarn_log_multiplier", 0.0)
    if by and rope.scaling is not None and rope.scaling.factor > 1:
        scale *= (by * math.log(rope.scaling.factor) + 1.0) ** 2
        scaling = msgspec.structs.replace(rope.scaling, attention_factor=1.0)
        rope = msgspec.structs.replace(rope, scaling=scaling)
    rope = _with_growth(keys, rope)
    # Youtu-LLM's files say that all layers are dense, and nothing about experts.
    sparse = dense < count
    experts = gguf_experts(model, f"blk.{dense}.exp_probs_b.bias") if sparse else None
    attention = AttentionSpec(latent=latent, scale=scale)
    layers = dense_first(attention, experts, dense, count)
    keys.ignore("attention.head_count_kv", "rope.dimension_count")
    return ModelConfig(
        architecture="deepseek_v3",
        vocab_size=model.vocab_size,
        hidden_size=keys.integer("embedding_length"),
        intermediate_size=model.same_in_all_layers("feed_forward_length"),
        num_layers=count,
        num_heads=keys.integer("attention.head_count"),
        num_kv_heads=1,
        head_dim=latent.rank + latent.rotating,
        max_position=keys.integer("context_length"),
        tie_word_embeddings="output.weight" not in model.tensors,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(rope,),
        layers=hub.shared(layers),
    )


_GROWTH, _GROWTH_LENGTH = "attention.temperature_scale", "attention.temperature_length"


def _with_growth(keys: Fields, rope: RopeSpec) -> RopeSpec:
    """The rotation with queries that grow, as those of Mistral's models do."""
    by = keys.number(_GROWTH, 0.0)
    if not by:
        return rope
    length = keys.integer(
        _GROWTH_LENGTH, keys.integer("rope.scaling.original_context_length", 8192)
    )
    if length < 1:
        raise keys.wrong(_GROWTH_LENGTH, "a positive number")
    return msgspec.structs.replace(rope, query_growth=rounded(by), query_growth_length=length)


def gguf_latent(keys: Fields) -> LatentSpec:
    """Older files have a head's sizes where newer ones have the latent's."""
    rotating = keys.integer("rope.dimension_count")
    key = keys.integer("attention.key_length_mla", keys.integer("attention.key_length"))
    sizes = {
        "rank": keys.integer("attention.kv_lora_rank"),
        "rotating": rotating,
        "plain": key - rotating,
        "value": keys.integer("attention.value_length_mla", keys.integer("attention.value_length")),
    }
    return _checked(sizes, keys.integer("attention.q_lora_rank", 0), keys.where)


_GATING = {1: "softmax", 2: "sigmoid"}
"""GGUF's numbers."""


def gguf_experts(model: GGUFMetadata, correction: str) -> ExpertsSpec:
    """Experts as DeepSeek-V3 chooses them, of a GGUF file. `correction`: the tensor of its
    corrections."""
    keys = model.keys
    kind = keys.integer("expert_gating_func", 1)
    one_of(keys, "expert_gating_func", kind, *_GATING)
    inner = keys.integer("expert_feed_forward_length")
    experts = ExpertsSpec(
        **model.expert_counts(),
        inner=inner,
        router="sigmoid" if _GATING[kind] == "sigmoid" else "softmax",
        correction=correction in model.tensors,
        groups=keys.integer("expert_group_count", 1),
        active_groups=keys.integer("expert_group_used_count", 1),
        group_best=2 if _GATING[kind] == "sigmoid" else 1,
        normalised=keys.flag("expert_weights_norm", False),
        scale=keys.positive("expert_weights_scale", 1.0),
        shared_inner=inner * keys.integer("expert_shared_count", 0),
    )
    bounds.check_expert_groups(keys, experts)
    return experts


NAMES = TensorNames(
    {
        "mlp.gate": "mlp.router",
        "mlp.gate.e_score_correction_bias": "mlp.router.correction",
        **{
            f"mlp.shared_experts.{each}": f"mlp.shared_expert.{each}"
            for each in ("gate_proj", "up_proj", "down_proj")
        },
        "self_attn.q_a_layernorm": "self_attn.q_a_norm",
        "self_attn.q_b_proj": "self_attn.q_proj",
        "self_attn.kv_a_proj_with_mqa": "self_attn.kv_a_proj",
        "self_attn.kv_a_layernorm": "self_attn.kv_a_norm",
    },
    layers_for_drafts=True,
    pairs_adjacent=True,
)

GGUF_NAMES = TensorNames(
    stacked={
        f"mlp.stacked.{name}": (f"mlp.experts.*.{name}",)
        for name in ("gate_proj", "up_proj", "down_proj")
    },
    layers_for_drafts=True,
    pairs_adjacent=True,
)

DEEPSEEK_V2 = Family(
    "deepseek_v2",
    ("DeepseekV2ForCausalLM",),
    "DeepSeek-V2",
    _hub_v2,
    gguf="deepseek2",
    read_gguf=gguf_model,
    hub_names=NAMES,
    gguf_names=GGUF_NAMES,
)
DEEPSEEK_V3 = Family(
    "deepseek_v3",
    ("DeepseekV3ForCausalLM",),
    "DeepSeek-V3 and R1, Kimi K2",
    _hub_v3,
    gguf="deepseek2",
    read_gguf=gguf_model,
    hub_names=NAMES,
    gguf_names=GGUF_NAMES,
)
GLM4_MOE_LITE = Family(
    "glm4_moe_lite",
    ("Glm4MoeLiteForCausalLM",),
    "GLM-4.7-Flash",
    _hub_glm,
    gguf="deepseek2",
    read_gguf=gguf_model,
    hub_names=NAMES,
    gguf_names=GGUF_NAMES,
)
YOUTU = Family(
    "youtu",
    ("YoutuForCausalLM",),
    "Youtu-LLM",
    _hub_youtu,
    gguf="deepseek2",
    read_gguf=gguf_model,
    hub_names=NAMES,
    gguf_names=GGUF_NAMES,
)
