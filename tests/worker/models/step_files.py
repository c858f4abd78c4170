"""Step 3.7's decoder as transformers computes it, and the files that StepFun and llama.cpp's
converter make of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.worker.models.gguf_writing import Conversion, Writer

Tensors = dict[str, Tensor]
DRAFTS = 3
"""Layers behind the last one that make drafts, of which files say something, too."""
KINDS = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 2.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 32.0,
    "original_max_position_embeddings": 64,
}
LOCAL = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0}
SETTINGS: dict[str, Any] = {
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "layer_types": KINDS,
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "num_sliding_attention_heads": 10,
    "sliding_window": 21,
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "share_expert_dim": 40,
    "moe_router_scaling_factor": 3.0,
    "swiglu_limits": [0.0, 0.9, None, 1.5],
    "swiglu_limits_shared": [0.7, 0.0, 0.0, 1.1],
    "rope_parameters": {
        "full_attention": LLAMA3 | {"rope_theta": 1000.0, "partial_rotary_factor": 0.5},
        "sliding_attention": LOCAL,
    },
}
PLAIN = SETTINGS | {
    "num_sliding_attention_heads": None,
    "attention_bias": True,
    "swiglu_limits": None,
    "swiglu_limits_shared": None,
    "rope_parameters": dict.fromkeys(KINDS, LOCAL),
}
"""A model that differs from its relatives in less."""


def renamed(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A tensor of transformers as StepFun's files have it."""
    for theirs, own in (
        ("mlp.gate.e_score_correction_bias", "moe.router_bias"),
        ("mlp.gate.", "moe.gate."),
        ("mlp.shared_experts.", "share_expert."),
        ("mlp.experts.down_proj", "moe.down_proj.weight"),
    ):
        name = name.replace(theirs, own)
    stem, stacked, _ = name.partition("mlp.experts.gate_up_proj")
    if not stacked:
        yield name, tensor
        return
    for part, rows in zip(("gate_proj", "up_proj"), tensor.chunk(2, 1), strict=True):
        yield f"{stem}moe.{part}.weight", rows


def released(tensors: Tensors, config: Any) -> Tensors:
    found = dict(each for item in tensors.items() for each in renamed(*item))
    behind = f"model.layers.{config.num_hidden_layers}"
    return found | {f"{behind}.eh_proj.weight": torch.zeros(4, 8)}


def says(config: Any) -> dict[str, Any]:
    """What StepFun's config.json says, in the place of what transformers' says."""
    own = config.to_dict()
    kinds = [*own["layer_types"], *["sliding_attention"] * DRAFTS]
    ropes = own["rope_parameters"]
    sparse = [str(at) for at, kind in enumerate(own["mlp_layer_types"]) if kind == "sparse"]
    gone = ["num_key_value_heads", "num_sliding_attention_heads", "per_layer_config"]
    gone += ["rope_parameters", "mlp_layer_types", "n_routed_experts", "num_experts_per_tok"]
    gone += ["query_pre_attn_scalar", "hidden_act"]
    return dict.fromkeys(gone) | {
        "attention_other_setting": {
            "attention_type": "sliding_attention",
            "num_attention_heads": own["num_sliding_attention_heads"],
            "num_attention_groups": own["num_key_value_heads"],
            "head_dim": own["head_dim"],
            "true_head_dim": own["head_dim"],
        },
        "att_impl_type": "GQA",
        "layer_types": kinds,
        "moe_layers_enum": ",".join(sparse),
        "moe_num_experts": own["n_routed_experts"],
        "moe_router_activation": "sigmoid",
        "moe_top_k": own["num_experts_per_tok"],
        "need_fp32_gate": True,
        "norm_expert_weight": True,
        "num_attention_groups": own["num_key_value_heads"],
        "num_nextn_predict_layers": DRAFTS,
        "partial_rotary_factors": [ropes[kind]["partial_rotary_factor"] for kind in kinds],
        "rope_scaling": LLAMA3,
        "rope_theta": [ropes[kind]["rope_theta"] for kind in kinds],
        "sink": False,
        "swiglu_limits": [*own["swiglu_limits"], *[0.0] * DRAFTS],
        "swiglu_limits_shared": [*own["swiglu_limits_shared"], *[0.0] * DRAFTS],
        "use_head_wise_attn_gate": True,
        "use_moe": True,
        "use_moe_router_bias": True,
        "use_qk_norm": True,
        "use_rope_layers": [],
        "yarn_only_types": ["full_attention"],
        "zero_centered": True,
    }


def says_gguf(writer: Writer, config: Any) -> None:
    own = config.to_dict()
    sliding = [kind == "sliding_attention" for kind in own["layer_types"]] + [True] * DRAFTS
    heads = own["num_attention_heads"], own["num_sliding_attention_heads"]
    writer.add_block_count(own["num_hidden_layers"] + DRAFTS)
    writer.add_nextn_predict_layers(DRAFTS)
    writer.add_head_count([heads[each] for each in sliding])
    writer.add_head_count_kv([own["num_key_value_heads"]] * len(sliding))
    del writer.kv_data[0][f"{writer.arch}.rope.dimension_count"]
    writer.add_rope_freq_base_swa(own["rope_parameters"]["sliding_attention"]["rope_theta"])
    writer.add_sliding_window(own["sliding_window"])
    writer.add_sliding_window_pattern(sliding)
    writer.add_expert_count(own["n_routed_experts"])
    writer.add_expert_used_count(own["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(own["moe_intermediate_size"])
    writer.add_expert_shared_feed_forward_length(own["share_expert_dim"])
    writer.add_expert_weights_scale(own["moe_router_scaling_factor"])
    writer.add_expert_weights_norm(True)
    for key, add in (
        ("swiglu_limits", writer.add_swiglu_clamp_exp),
        ("swiglu_limits_shared", writer.add_swiglu_clamp_shexp),
    ):
        add([each or 0.0 for each in own[key]] + [0.0] * DRAFTS)
    writer.add_tensor("rope_freqs.weight", rope_divisors(config))


def rope_divisors(config: Any) -> np.ndarray:
    """By what the frequencies of layers that see everything are divided, then ones: as many as a
    whole head has pairs."""
    stretched, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu", layer_type="full_attention")
    theta, dims = config.rope_parameters["full_attention"]["rope_theta"], 2 * len(stretched)
    plain = 1.0 / theta ** (torch.arange(0, dims, 2).float() / dims)
    divisors = torch.ones(config.head_dim // 2)
    divisors[: len(plain)] = plain / stretched
    return divisors.numpy()


def gguf_parts(name: str, tensor: Tensor, state: Tensors) -> Iterator[tuple[str, Tensor]]:
    for own, part in renamed(name, tensor):
        yield own.replace("router_bias", "router_bias.bias"), part


GGUF = Conversion(gguf.MODEL_ARCH.STEP35, says_gguf, plus_one=True, own_parts=gguf_parts)
