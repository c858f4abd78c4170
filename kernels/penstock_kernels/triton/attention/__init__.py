"""Attention over the paged KV cache and over an encoder's input, and what writes and copies the
cache."""
