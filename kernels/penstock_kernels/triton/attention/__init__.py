"""Attention over the paged KV cache and over an encoder's input, and kernels that write and copy
the cache."""
