"""Writing keys and values to the paged cache.

A layer's cache is two tensors [kv_heads, slots, head_dim].  Token position p of a sequence lies
in slot `table[p // block_size] * block_size + p % block_size`.  The cache has one block more than
the pool: the last block holds zeros and is never written; padding reads it.
"""

from __future__ import annotations

from torch import Tensor


def write_kv(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor
) -> None:
    """Store each row's key and value in its slot. Mutates both caches.

    key, value: [rows, kv_heads, head_dim] of the cache's dtype.  slots: [rows] int64, distinct.
    """
    key_cache.index_copy_(1, slots, key.transpose(0, 1))
    value_cache.index_copy_(1, slots, value.transpose(0, 1))
