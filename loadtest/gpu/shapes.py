"""The shapes that are measured, as the models' own config.json files have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.model.rope_spec import RopeScaling
from testing.model_configs import llama_config, varied

LLAMA_8B = llama_config(
    architecture="llama",
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    max_position=131_072,
    rms_norm_eps=1e-5,
    rope_theta=500_000.0,
    rope_scaling=RopeScaling(kind="llama3", factor=8.0),
)
QWEN3_06B = llama_config(
    architecture="qwen3",
    vocab_size=151_936,
    hidden_size=1024,
    intermediate_size=3072,
    num_layers=28,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    max_position=40_960,
    rms_norm_eps=1e-6,
    rope_theta=1_000_000.0,
    tie_word_embeddings=True,
    qk_norm=True,
)
TINY_LLAMA = llama_config(
    architecture="llama",
    vocab_size=320,
    hidden_size=128,
    intermediate_size=128,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=32,
    max_position=512,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
)
TINY_QWEN3 = varied(
    TINY_LLAMA, architecture="qwen3", rms_norm_eps=1e-6, tie_word_embeddings=True, qk_norm=True
)
MODELS = {
    "Llama-3.1-8B": LLAMA_8B,
    "Qwen3-0.6B": QWEN3_06B,
    "tiny-llama": TINY_LLAMA,
    "tiny-qwen3": TINY_QWEN3,
}


@dataclass(frozen=True)
class Mixture:
    """Qwen3's mixtures: all layers have experts.  inner: of one expert."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    inner: int
    experts: int
    active: int
    vocab: int

    @property
    def hub_config(self) -> dict[str, Any]:
        return {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "dtype": "bfloat16",
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": 3 * self.inner,
            "moe_intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_size,
            "num_experts": self.experts,
            "num_experts_per_tok": self.active,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "max_position_embeddings": 40_960,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1_000_000.0,
            "tie_word_embeddings": False,
            "hidden_act": "silu",
            "attention_bias": False,
            "eos_token_id": 0,
        }

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """(outputs, inputs) of a layer's matrices but the router, by their names on the hub."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        found = {
            "self_attn.q_proj": (queries, self.hidden),
            "self_attn.k_proj": (keys, self.hidden),
            "self_attn.v_proj": (keys, self.hidden),
            "self_attn.o_proj": (self.hidden, queries),
        }
        for expert in range(self.experts):
            at = f"mlp.experts.{expert}"
            found |= {f"{at}.{name}_proj": (self.inner, self.hidden) for name in ("gate", "up")}
            found[f"{at}.down_proj"] = (self.hidden, self.inner)
        return found
