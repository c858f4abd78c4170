"""Attention over a paged KV cache, for models made of torch blocks."""
