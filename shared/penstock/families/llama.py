"""Llama 2 and 3, SmolLM, Mistral without sliding windows, and relatives: grouped-query attention,
rotary positions and SwiGLU; biases only where the config has them.

Source: Touvron et al., "Llama 2", 2023; Grattafiori et al., "The Llama 3 herd of models", 2024.
"""

from __future__ import annotations

from penstock.families.family import Family

LLAMA = Family(
    "llama",
    ("LlamaForCausalLM", "MistralForCausalLM"),
    "Llama 2 and 3, SmolLM, Mistral without sliding windows",
    gguf_pairs_adjacent=True,
)
