"""Qwen 3, dense: Llama with queries and keys normalised head by head, and a head size of its own.

Source: Yang et al., "Qwen3 technical report", 2025.
"""

from __future__ import annotations

from penstock.families.family import Family

QWEN3 = Family("qwen3", ("Qwen3ForCausalLM",), "Qwen3", qk_norm=True, default_head_dim=128)
