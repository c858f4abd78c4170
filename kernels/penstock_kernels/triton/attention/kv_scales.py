"""Scales of keys and values in a cache of FP8, one for each KV head."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class KVScales:
    """Factors by which stored keys and values of a layer are multiplied to get the true ones. Each
    is [kv_heads] float32, finite and positive."""

    key: Tensor
    value: Tensor
    """Scale of values; the same as `key` if values are parts of keys."""
    key_inverse: Tensor
    """1 / key. Products, unlike a GPU's quotients, are rounded alike everywhere."""
    value_inverse: Tensor

    @staticmethod
    def of(key: Tensor, value: Tensor) -> KVScales:
        """Raises ValueError for scales of other shapes than [kv_heads]."""
        if key.dim() != 1 or key.shape != value.shape:
            raise ValueError(
                f"scales of keys and values must be [kv_heads] each, not {tuple(key.shape)} and "
                f"{tuple(value.shape)}"
            )
        key, value = key.float().contiguous(), value.float().contiguous()
        return KVScales(key, value, 1.0 / key, 1.0 / value)
