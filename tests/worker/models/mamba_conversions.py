"""Mamba's layers, and the families that have them, as llama.cpp's converter writes them to GGUF."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gguf
import torch
from torch import Tensor

from tests.worker.models.recurrent_cases import LINEAR

Writer = gguf.GGUFWriter
Named = Iterator[tuple[str, Tensor]]


def experts(writer: Writer, config: Any) -> None:
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def granite(writer: Writer, config: Any) -> None:
    kv_heads = config.num_key_value_heads
    writer.add_head_count_kv([0 if kind == LINEAR else kv_heads for kind in config.layer_types])
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)
    writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
    writer.add_expert_count(config.num_local_experts)
    if config.num_local_experts:
        writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_scaling_finetuned(False)
    mamba(
        writer,
        heads=config.mamba_n_heads,
        inner=config.mamba_expand * config.hidden_size,
        groups=config.mamba_n_groups,
        state=config.mamba_d_state,
        kernel=config.mamba_d_conv,
    )


def bamba(writer: Writer, config: Any) -> None:
    kv_heads, count = config.num_key_value_heads, config.num_hidden_layers
    attends = config.attn_layer_indices
    writer.add_head_count_kv([kv_heads if at in attends else 0 for at in range(count)])
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads // 2)
    writer.add_rope_scaling_finetuned(True)
    mamba(
        writer,
        heads=config.mamba_n_heads,
        inner=config.mamba_expand * config.hidden_size,
        groups=config.mamba_n_groups,
        state=config.mamba_d_state,
        kernel=config.mamba_d_conv,
    )


def mamba(writer: Writer, *, heads: int, inner: int, groups: int, state: int, kernel: int) -> None:
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_group_count(groups)
    writer.add_ssm_state_size(state)
    writer.add_ssm_conv_kernel(kernel)


def mamba2(writer: Writer, config: Any) -> None:
    writer.add_feed_forward_length(0)
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    mamba(
        writer,
        heads=config.num_heads,
        inner=config.expand * config.hidden_size,
        groups=config.n_groups,
        state=config.state_size,
        kernel=config.conv_kernel,
    )


def mamba1(writer: Writer, config: Any) -> None:
    writer.add_feed_forward_length(0)
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    writer.add_ssm_conv_kernel(config.conv_kernel)
    writer.add_ssm_inner_size(config.intermediate_size)
    writer.add_ssm_state_size(config.state_size)
    writer.add_ssm_time_step_rank(config.time_step_rank)
    writer.add_ssm_dt_b_c_rms(config.model_type == "falcon_mamba")


def jamba(writer: Writer, config: Any) -> None:
    kv_heads = config.num_key_value_heads
    writer.add_head_count_kv([0 if each == LINEAR else kv_heads for each in config.layer_types])
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_ssm_conv_kernel(config.mamba_d_conv)
    writer.add_ssm_inner_size(config.mamba_expand * config.hidden_size)
    writer.add_ssm_state_size(config.mamba_d_state)
    writer.add_ssm_time_step_rank(config.mamba_dt_rank)
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)


def of_mamba1(name: str, tensor: Tensor, config: Any) -> Named:
    if name.endswith("A_log"):
        yield name, -tensor.exp()
    elif "conv1d" in name:
        yield name, tensor.squeeze(1) if name.endswith("weight") else tensor
    else:
        yield name, tensor


def nemotron_h(writer: Writer, config: Any) -> None:
    kinds = config.layers_block_type
    kv_heads = config.num_key_value_heads
    writer.add_head_count_kv([kv_heads if kind == "full_attention" else 0 for kind in kinds])
    sparse = "moe" in kinds
    inner = config.moe_intermediate_size if sparse else config.intermediate_size
    writer.add_feed_forward_length([inner if kind in ("moe", "mlp") else 0 for kind in kinds])
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    if sparse:
        writer.add_expert_count(config.n_routed_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.moe_shared_expert_intermediate_size)
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
        if config.moe_latent_size:
            writer.add_moe_latent_size(config.moe_latent_size)
    mamba(
        writer,
        heads=config.mamba_num_heads,
        inner=config.mamba_num_heads * config.mamba_head_dim,
        groups=config.n_groups,
        state=config.ssm_state_size,
        kernel=config.conv_kernel,
    )


def of_mamba(name: str, tensor: Tensor, config: Any) -> Named:
    groups = getattr(config, "mamba_n_groups", None) or config.n_groups
    if name.endswith("dt_bias"):
        # Both names are in use, each in other families.
        ending = "dt_proj.bias" if "mamba." in name else "dt.bias"
        yield name.replace("dt_bias", ending), tensor
    elif name.endswith("A_log"):
        yield name, -tensor.exp()[:, None]
    elif name.endswith(".D"):
        yield name, tensor[:, None]
    elif "conv1d" in name:
        yield name, tensor.squeeze(1) if name.endswith("weight") else tensor
    elif name.endswith(("mixer.norm.weight", "mamba.norm.weight")):
        yield name, tensor.view(groups, -1)
    else:
        yield name.replace("correction_bias", "correction.bias"), tensor


def falcon_h1(writer: Writer, config: Any) -> None:
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    head = config.hidden_size // config.num_attention_heads
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    mamba(
        writer,
        heads=config.mamba_n_heads,
        inner=config.mamba_d_ssm,
        groups=config.mamba_n_groups,
        state=config.mamba_d_state,
        kernel=config.mamba_d_conv,
    )


def of_falcon_h1(name: str, tensor: Tensor, config: Any) -> Named:
    """The converter multiplies weights by what transformers multiplies inputs and outputs by."""
    inputs = config.attention_in_multiplier
    factors = {
        "down_proj": config.mlp_multipliers[1],
        "gate_proj": config.mlp_multipliers[0],
        "k_proj": config.key_multiplier * inputs,
        "q_proj": inputs,
        "v_proj": inputs,
        "o_proj": config.attention_out_multiplier,
        "out_proj": config.ssm_out_multiplier,
        "lm_head": config.lm_head_multiplier,
        "embed_tokens": config.embedding_multiplier,
    }
    module = name.split(".")[-2]
    tensor = tensor * factors.get(module, 1.0)
    if module == "in_proj":
        maps = config.mamba_n_groups * config.mamba_d_state
        rows = [config.mamba_d_ssm] * 2 + [maps] * 2 + [config.mamba_n_heads]
        parts = zip(tensor.split(rows), config.ssm_multipliers, strict=True)
        tensor = torch.cat([part * factor * config.ssm_in_multiplier for part, factor in parts])
    yield from of_mamba(name.replace("pre_ff_", "pre_feedforward_"), tensor, config)


def of_bamba(name: str, tensor: Tensor, config: Any) -> Named:
    yield from of_granite(name.replace("feed_forward.", "mlp."), tensor, config)


def of_granite(name: str, tensor: Tensor, config: Any) -> Named:
    if name.endswith("shared_mlp.input_linear.weight"):
        stem = name.removesuffix("shared_mlp.input_linear.weight")
        kind = "shared_expert." if config.num_local_experts else ""
        for part, values in zip(("gate_proj", "up_proj"), tensor.chunk(2), strict=True):
            yield f"{stem}mlp.{kind}{part}.weight", values
    elif name.endswith("block_sparse_moe.input_linear.weight"):
        stem = name.removesuffix("block_sparse_moe.input_linear.weight")
        for part, values in zip(("gate_proj", "up_proj"), tensor.chunk(2, 1), strict=True):
            yield f"{stem}mlp.experts.{part}.weight", values
    elif name.endswith("shared_mlp.output_linear.weight") and not config.num_local_experts:
        yield name.replace("shared_mlp.output_linear", "mlp.down_proj"), tensor
    elif ".q_proj." in name or ".k_proj." in name:
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        pairs = tensor.view(heads, 2, -1, *tensor.shape[1:])
        yield name, pairs.transpose(1, 2).reshape(tensor.shape)
    else:
        yield from of_mamba(name, tensor, config)
