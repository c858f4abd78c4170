"""Qwen 2 and 2.5: Llama with biases on queries, keys and values.

Source: Yang et al., "Qwen2 technical report", 2024.
"""

from __future__ import annotations

from penstock.families.family import Family

QWEN2 = Family("qwen2", ("Qwen2ForCausalLM",), "Qwen2, Qwen2.5", always_qkv_bias=True)
