"""The keys that llama.cpp's converter writes for families of 2026, and for those of which few files
are made."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np

from tests.worker.models import gguf_keys as keys
from tests.worker.models.gguf_keys import Writer


def hy_v3(writer: Writer, config: Any) -> None:
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    shared = config.moe_intermediate_size * config.num_shared_experts
    writer.add_expert_shared_feed_forward_length(shared)
    writer.add_expert_weights_norm(True)  # what releases say
    writer.add_expert_weights_scale(config.router_scaling_factor)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def granite_swa(writer: Writer, config: Any) -> None:
    keys.granite_moe(writer, config)
    keys.olmo3(writer, config)
    turning = [int(base != 0) for base in config.layer_rope_theta]
    writer.add_array(f"{writer.arch}.attention.rope_pattern", turning)


def minicpm3(writer: Writer, config: Any) -> None:
    """Says nothing of values, of multipliers, and of what the rotation was stretched from."""
    del writer.kv_data[0][f"{writer.arch}.attention.value_length"]
    writer.add_vocab_size(config.vocab_size)
    writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    for kind in ("long", "short"):
        factors = np.array(config.rope_parameters[f"{kind}_factor"], np.float32)
        writer.add_tensor(f"rope_factors_{kind}.weight", factors)


def muse_glimmer(writer: Writer, config: Any) -> None:
    keys.olmo3(writer, config)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_logit_scale(config.output_multiplier)


def solar_open(writer: Writer, config: Any) -> None:
    """Also the inner dimension of layers without experts, of which there are none."""
    writer.add_feed_forward_length(3 * config.moe_intermediate_size)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_leading_dense_block_count(0)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(config.norm_topk_prob)
