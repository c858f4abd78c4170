"""Attention over a paged KV cache, for models in torch."""
