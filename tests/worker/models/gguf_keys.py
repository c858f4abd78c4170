"""The keys that llama.cpp's converter writes for single families."""

from __future__ import annotations

import math
from typing import Any

import gguf
import numpy as np
from torch import Tensor

Writer = gguf.GGUFWriter


def of_all(writer: Writer, config: Any) -> None:
    """Keys that are written for any family, as far as its config has what they say."""
    ropes = config.rope_parameters
    rope = ropes.get("full_attention", ropes)
    if rope.get("rope_type") == "yarn":
        yarn(writer, rope)
    elif rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if "sliding_attention" in ropes:
        writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    for names, add in (
        (("rms_norm_eps", "norm_eps"), writer.add_layer_norm_rms_eps),
        (("layer_norm_eps", "norm_epsilon"), writer.add_layer_norm_eps),
        (("num_local_experts", "num_experts"), writer.add_expert_count),
        (("num_experts_per_tok", "top_k_experts"), writer.add_expert_used_count),
        (("n_group",), writer.add_expert_group_count),
        (("topk_group",), writer.add_expert_group_used_count),
    ):
        found = [getattr(config, name, None) for name in names]
        for value in found[::-1]:
            if value is not None:
                add(value)


def yarn(writer: Writer, rope: dict[str, Any]) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    for key, name in (
        ("attention_factor", "yarn_attn_factor"),
        ("beta_fast", "yarn_beta_fast"),
        ("beta_slow", "yarn_beta_slow"),
    ):
        if rope.get(key) is not None:
            writer.add_float32(f"{writer.arch}.rope.scaling.{name}", rope[key])


def windows(writer: Writer, config: Any) -> None:
    writer.add_sliding_window(config.sliding_window)


def phi3(writer: Writer, config: Any) -> None:
    writer.add_sliding_window(config.sliding_window or 0)
    rope = config.rope_parameters
    original = rope.get("original_max_position_embeddings", config.max_position_embeddings)
    writer.add_rope_scaling_orig_ctx_len(original)
    if rope["rope_type"] != "longrope":
        return
    longer = config.max_position_embeddings / original
    if longer > 1:
        growth = math.sqrt(1 + math.log(longer) / math.log(original))
        writer.add_rope_scaling_attn_factors(growth)
    for kind in ("long", "short"):
        factors = np.array(rope[f"{kind}_factor"], np.float32)
        writer.add_tensor(f"rope_factors_{kind}.weight", factors)


def phimoe(writer: Writer, config: Any) -> None:
    phi3(writer, config)
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)


def gemma2(writer: Writer, config: Any) -> None:
    windows(writer, config)
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)


def granite(writer: Writer, config: Any) -> None:
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


def cohere2(writer: Writer, config: Any) -> None:
    windows(writer, config)
    cohere(writer, config)


def cohere(writer: Writer, config: Any) -> None:
    writer.add_logit_scale(config.logit_scale)
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    writer.add_vocab_size(config.vocab_size)


def experts(writer: Writer, config: Any) -> None:
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def some_experts(writer: Writer, config: Any) -> None:
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)


def ministral3(writer: Writer, config: Any) -> None:
    rope = config.rope_parameters
    writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
    writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])


def qwen2_moe(writer: Writer, config: Any) -> None:
    some_experts(writer, config)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def nemotron(writer: Writer, config: Any) -> None:
    writer.add_layer_norm_eps(config.norm_eps)


def exaone4(writer: Writer, config: Any) -> None:
    windows(writer, config)
    writer.add_vocab_size(config.vocab_size)
    writer.add_sliding_window_pattern([each == "sliding_attention" for each in config.layer_types])


def granite_moe(writer: Writer, config: Any) -> None:
    granite(writer, config)
    if hasattr(config, "shared_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)


def granite4(writer: Writer, config: Any) -> None:
    """Says what Mamba would be like, of which there is none."""
    granite_moe(writer, config)
    writer.add_ssm_conv_kernel(config.mamba_d_conv)
    writer.add_ssm_state_size(config.mamba_d_state)
    writer.add_ssm_group_count(config.mamba_n_groups)
    writer.add_ssm_inner_size(config.mamba_expand * config.hidden_size)
    writer.add_ssm_time_step_rank(config.mamba_n_heads)
    writer.add_head_count_kv([config.num_key_value_heads] * config.num_hidden_layers)
    writer.add_rope_scaling_finetuned(True)


def olmo3(writer: Writer, config: Any) -> None:
    windows(writer, config)
    writer.add_sliding_window_pattern([each == "sliding_attention" for each in config.layer_types])


def llama4(writer: Writer, config: Any) -> None:
    writer.add_feed_forward_length(config.intermediate_size_mlp)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_interleave_moe_layer_step(config.interleave_moe_layer_step)


def behind_a_tower(writer: Writer, config: Any) -> None:
    """Text has three equal numbers in the place of a position."""
    experts(writer, config)
    writer.add_rope_dimension_sections([4, 2, config.head_dim // 2 - 6, 0])
    writer.add_num_deepstack_layers(2)


def minimax_m2(writer: Writer, config: Any) -> None:
    some_experts(writer, config)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_feed_forward_length(config.intermediate_size)


def gpt_oss(writer: Writer, config: Any) -> None:
    windows(writer, config)
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.intermediate_size)


def deepseek(writer: Writer, config: Any) -> None:
    writer.add_kv_lora_rank(config.kv_lora_rank)
    if config.q_lora_rank:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_leading_dense_block_count(getattr(config, "first_k_dense_replace", 1))
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    sigmoid = config.model_type not in ("deepseek_v2", "mistral4")
    kinds = gguf.ExpertGatingFuncType
    writer.add_expert_gating_func(kinds.SIGMOID if sigmoid else kinds.SOFTMAX)
    if sigmoid:
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
    rope = config.rope_parameters
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def mistral4(writer: Writer, config: Any) -> None:
    """Keys that the converter writes of Mistral's own files; of transformers' it leaves out by how
    much queries grow."""
    deepseek(writer, config)
    rope = config.rope_parameters
    writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    writer.add_attn_temperature_length(rope["original_max_position_embeddings"])


def laguna(writer: Writer, config: Any) -> None:
    """Which layers have a window is nowhere said: all but every fourth, from the first on."""
    size, local = config.head_dim, config.rope_parameters["sliding_attention"]
    writer.add_head_count(config.num_attention_heads_per_layer)
    writer.add_sliding_window(config.sliding_window)
    turning = int(size * local.get("partial_rotary_factor", 1.0))
    writer.add_rope_dimension_count_swa(turning)
    writer.add_leading_dense_block_count(config.mlp_layer_types.count("dense"))
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(config.moe_routed_scaling_factor)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def glm_dsa(writer: Writer, config: Any) -> None:
    deepseek(writer, config)
    writer.add_indexer_head_count(config.index_n_heads)
    writer.add_indexer_key_length(config.index_head_dim)
    writer.add_indexer_top_k(config.index_topk)


def glm45(writer: Writer, config: Any) -> None:
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim // 2)
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(config.norm_topk_prob)


def dots1(writer: Writer, config: Any) -> None:
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(config.norm_topk_prob)


def deepseek_ocr2(writer: Writer, config: Any) -> None:
    """Of a head without latents, too, the size of the part that rotates is what the release's
    config.json has for one with such: 0."""
    writer.kv_data[0][f"{writer.arch}.rope.dimension_count"].value = 0
    writer.add_leading_dense_block_count(config.mlp_layer_types.count("dense"))
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_scale(config.routed_scaling_factor)


def ernie45_moe(writer: Writer, config: Any) -> None:
    writer.add_expert_count(config.moe_num_experts)
    writer.add_expert_used_count(config.moe_k)
    writer.add_interleave_moe_layer_step(config.moe_layer_interval)
    writer.add_leading_dense_block_count(config.moe_layer_start_index)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.moe_num_shared_experts)
    quotient = config.intermediate_size // config.num_key_value_heads
    writer.add_expert_shared_feed_forward_length(quotient)


def mimo2(writer: Writer, config: Any) -> None:
    """Three layers for drafts are counted besides, and have a window."""
    drafts = 3
    sliding = [kind == "sliding_attention" for kind in config.layer_types] + [True] * drafts
    own = config.num_key_value_heads
    writer.add_block_count(config.num_hidden_layers + drafts)
    writer.add_nextn_predict_layers(drafts)
    writer.add_head_count_kv([2 * own if each else own for each in sliding])
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern([int(each) for each in sliding])
    writer.add_value_length(config.v_head_dim)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_float32(f"{writer.arch}.attention.value_scale", config.attention_value_scale)


def exaone_moe(writer: Writer, config: Any) -> None:
    exaone4(writer, config)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.num_shared_experts)
    writer.add_expert_shared_feed_forward_length(
        config.moe_intermediate_size * config.num_shared_experts
    )
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    writer.add_nextn_predict_layers(0)
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)


def olmo1(writer: Writer, config: Any) -> None:
    writer.add_layer_norm_eps(1e-5)
    if config.clip_qkv is not None:
        writer.add_clamp_kqv(config.clip_qkv)


def dbrx(writer: Writer, config: Any) -> None:
    writer.add_layer_norm_eps(1e-5)
    writer.add_clamp_kqv(config.attn_config.clip_qkv)
    writer.add_expert_count(config.ffn_config.moe_num_experts)
    writer.add_expert_used_count(config.ffn_config.moe_top_k)


def bitnet(writer: Writer, config: Any) -> None:
    """Files without the key are of models with silu."""
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(1.0)
    if config.hidden_act != "silu":
        writer.add_string(f"{writer.arch}.hidden_activation", config.hidden_act)


def apertus(writer: Writer, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each coefficient of all layers is a list."""
    for name in ("alpha_p", "alpha_n", "beta", "eps"):
        values = [each.item() for key, each in state.items() if key.endswith(f"act_fn.{name}")]
        getattr(writer, f"add_xielu_{name}")(values)
    return {name: each for name, each in state.items() if "act_fn" not in name}


def afmoe(writer: Writer, config: Any) -> None:
    windows(writer, config)
    writer.add_expert_shared_count(config.num_shared_experts)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_leading_dense_block_count(config.num_dense_layers)
    writer.add_expert_weights_norm(
        True
    )  # what release's files say, and transformers' class doesn't
    writer.add_expert_weights_scale(config.route_scale)


def youtu(writer: Writer, config: Any) -> None:
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_leading_dense_block_count(config.num_hidden_layers)


def mellum(writer: Writer, config: Any) -> None:
    olmo3(writer, config)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def cohere2_moe(writer: Writer, config: Any) -> None:
    exaone4(writer, config)
    writer.add_feed_forward_length(config.prefix_dense_intermediate_size)
    writer.add_logit_scale(config.logit_scale)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_leading_dense_block_count(config.mlp_layer_types.count("dense"))
    writer.add_expert_weights_norm(config.norm_topk_prob)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)


def hunyuan(writer: Writer, config: Any) -> None:
    """The base as the factor has made it."""
    rope, head = config.rope_parameters, config.head_dim
    alpha = rope.get("alpha")
    if alpha is not None:
        writer.add_rope_freq_base(rope["rope_theta"] * alpha ** (head / (head - 2)))
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_rope_scaling_factor(1)
        writer.add_rope_scaling_orig_ctx_len(256 * 1024)
    if hasattr(config, "moe_topk"):
        writer.add_expert_shared_feed_forward_length(config.intermediate_size)
        writer.add_expert_feed_forward_length(config.intermediate_size)
        writer.add_expert_used_count(config.moe_topk)
        writer.add_expert_shared_count(1)
