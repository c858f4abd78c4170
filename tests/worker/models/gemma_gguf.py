"""What llama.cpp's converter does to Gemma 3n and Gemma 4 beyond renaming."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import NormalDist
from typing import Any

import gguf
import torch
from torch import Tensor

Writer = gguf.GGUFWriter


def gemma3n(writer: Writer, config: Any) -> None:
    _both(writer, config)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_altup_active_idx(config.altup_active_idx)
    writer.add_altup_num_inputs(config.altup_num_inputs)
    shares = config.activation_sparsity_pattern
    scales = [NormalDist().inv_cdf(share) if share else float("-inf") for share in shares]
    writer.add_activation_sparsity_scale(scales)


def gemma4(writer: Writer, config: Any) -> None:
    _both(writer, config)
    sliding = [kind == "sliding_attention" for kind in config.layer_types]
    full = config.per_layer_config[sliding.index(False)]
    for add in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        add(full.head_dim)
    for add in (
        writer.add_key_length_swa,
        writer.add_value_length_swa,
        writer.add_rope_dimension_count_swa,
    ):
        add(config.head_dim)
    if full.num_key_value_heads != config.num_key_value_heads:
        usual, own = config.num_key_value_heads, full.num_key_value_heads
        writer.add_head_count_kv([usual if each else own for each in sliding])
    if config.use_double_wide_mlp:
        inner, first = config.intermediate_size, len(sliding) - config.num_kv_shared_layers
        lengths = [inner * (1 + (at >= first)) for at in range(len(sliding))]
        writer.add_feed_forward_length(lengths)
    if getattr(config, "enable_moe_block", False):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    turning = full.head_dim // 8  # a quarter of the head, in pairs
    divisors = [1.0] * turning + [1e30] * (full.head_dim // 2 - turning)
    writer.add_tensor("rope_freqs.weight", torch.tensor(divisors).numpy())


def _both(writer: Writer, config: Any) -> None:
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    inputs = getattr(config, "hidden_size_per_layer_input", 0)  # Gemma 4 12B's has none
    writer.add_embedding_length_per_layer_input(inputs)
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def parts(name: str, tensor: Tensor, state: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The tensors that the file has in the place of one of transformers'. A name that ends with
    `.scale` is the file's own."""
    layer = name.split(".")[2] if ".layers." in name else ""
    if name.endswith("router.scale"):
        yield f"blk.{layer}.ffn_gate_inp.scale", tensor
    elif name.endswith("per_expert_scale"):
        yield f"blk.{layer}.ffn_down_exps.scale", tensor
    elif "altup_projections." in name or "altup_unembed_projections." in name:
        stem, number, _ = name.rsplit(".", 2)
        if number == "0":
            found = [state[key] for key in state if key.startswith(f"{stem}.")]
            yield f"{stem}.weight", torch.stack(found)
    elif name.endswith(("_scale", "layer_scalar", "experts.gate_up_proj", "experts.down_proj")):
        yield f"{name}.weight", tensor
    else:
        yield name, tensor
