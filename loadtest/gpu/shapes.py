"""The shapes that are measured, as the models' own config.json files have them."""

from __future__ import annotations

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
