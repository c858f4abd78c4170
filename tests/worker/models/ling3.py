"""Ling 3, which transformers has no class of, put together of its parts: Kimi Linear's layers with
the forget gates of GLM-5-Next, and DeepSeek-V3's latents with a gate for each head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.worker.models.case_sizes import SIZES
from tests.worker.models.recurrent_cases import KIMI
from tests.worker.models.twin import Tensors, Twin, renamed

FULL, LINEAR = "full_attention", "linear_attention"
GROUP = 3
LOWEST = -2.5
THETA = 5000.0


def latents(config: Any, layer: int) -> Any:
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek

    class GatedLatents(deepseek.DeepseekV3Attention):
        def __init__(self) -> None:
            super().__init__(config, layer)
            self.g_proj = torch.nn.Linear(config.hidden_size, self.num_heads, bias=False)
            self.rotary = deepseek.DeepseekV3RotaryEmbedding(config)
            self.o_proj.register_forward_pre_hook(self.gated)

        def gated(self, module: Any, values: tuple[Tensor]) -> Tensor:
            by_head = values[0].unflatten(-1, (self.num_heads, -1))
            return (by_head * self.gates.sigmoid()[..., None]).flatten(-2)

        def forward(
            self, hidden_states: Tensor, attention_mask: Any, position_ids: Tensor, **also: Any
        ) -> Any:
            self.gates = self.g_proj(hidden_states)
            angles = self.rotary(hidden_states, position_ids)
            return super().forward(hidden_states, angles, attention_mask)

    return GatedLatents()


def begins(model: Any) -> None:
    from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextForgetGate

    config = model.config
    config.linear_lower_bound, config.rope_interleave = LOWEST, True
    config.rope_parameters = {"rope_type": "default", "rope_theta": THETA}
    inner = config.linear_num_heads * config.linear_head_dim
    spread = config.initializer_range
    for number, layer in enumerate(model.model.layers):
        if config.layer_types[number] == FULL:
            layer.self_attn = latents(config, number)
            for name, parameter in layer.self_attn.named_parameters():
                parameter.normal_(float("norm" in name), spread)
            continue
        mixer, gate = layer.self_attn, Glm5NextTextForgetGate(config)
        gate.A_log.uniform_(-1, 1.5)
        gate.dt_bias.normal_(0, 0.5)
        gate.f_a_proj, gate.f_b_proj = whole(config, inner), torch.nn.Identity()
        mixer.forget_gate = gate
        mixer.g_a_proj, mixer.g_b_proj = whole(config, inner), torch.nn.Identity()


def whole(config: Any, inner: int) -> Any:
    found = torch.nn.Linear(config.hidden_size, inner, bias=False)
    found.weight.normal_(0, config.initializer_range)
    return found


def says(config: Any) -> dict[str, Any]:
    return {
        "first_k_dense_replace": 1,
        "gated_attention_proj_granularity_type": "head_wise",
        "head_dim": config.linear_head_dim,
        "kda_lower_bound": LOWEST,
        "kda_safe_gate": True,
        "layer_group_size": GROUP,
        "max_position_embeddings": SIZES["max_position_embeddings"],
        "moe_router_enable_expert_bias": True,
        "moe_shared_expert_intermediate_size": config.moe_intermediate_size,
        "n_group": config.n_group,
        "no_kda_lora": True,
        "norm_topk_prob": config.norm_topk_prob,
        "num_experts": config.num_local_experts,
        "num_experts_per_tok": config.num_experts_per_tok,
        "num_shared_experts": config.n_shared_experts,
        "partial_rotary_factor": 0.5,
        "rope_interleave": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
        "score_function": "sigmoid",
        "short_conv_kernel_size": config.linear_conv_kernel_dim,
        "use_qk_norm": True,
    }


def files(tensors: Tensors, config: Any) -> Tensors:
    return renamed(
        ("embed_tokens", "word_embeddings"),
        ("f_a_proj", "f_proj"),
        ("g_a_proj", "g_proj"),
        ("e_score_correction_bias", "expert_bias"),
        ("block_sparse_moe", "mlp"),
        (".w1.", ".gate_proj."),
        (".w2.", ".down_proj."),
        (".w3.", ".up_proj."),
        *(
            (f"{number}.self_attn.o_proj", f"{number}.attention.dense")
            for number, kind in enumerate(config.layer_types)
            if kind == FULL
        ),
        ("self_attn", "attention"),
    )(tensors, config)


LING3 = Twin(
    "BailingMoeV3ForCausalLM",
    "KimiLinear",
    KIMI
    | {
        "num_hidden_layers": GROUP + 1,
        "layer_types": [LINEAR, LINEAR, FULL, FULL],
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "linear_num_heads": 4,
        "q_lora_rank": 24,
        "n_group": 3,
        "topk_group": 2,
    },
    says,
    files,
    begins,
)
