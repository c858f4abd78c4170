"""The paged KV cache, and how keys and values are written to it.

A layer's cache is two tensors [kv_heads, slots, head_dim], or objects like them that store bytes.
Token position p of a sequence is in slot `table[p // block_size] * block_size + p % block_size`.
The cache has one more block than the engine core knows of: it contains zeros, is never written, and
is read as padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from torch import Tensor


class KVRows(Protocol):
    """A layer's keys or values, [kv_heads, slots, head_dim]: the part of a tensor's interface that
    attention uses. `dtype` is that of the rows that are written and read."""

    @property
    def shape(self) -> Sequence[int]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def index_select(self, dim: int, index: Tensor, /) -> Tensor: ...

    def index_copy_(self, dim: int, index: Tensor, source: Tensor, /) -> object: ...


class Int8Rows:
    """Each head's vector as int8 with its own float32 scale: its largest magnitude / 127, with
    levels rounded to nearest even. NaN or infinity make the scale NaN, so that the whole vector
    reads as NaN."""

    def __init__(self, kv_heads: int, slots: int, head_dim: int) -> None:
        self.dtype = torch.float32
        self.levels = torch.empty(kv_heads, slots, head_dim, dtype=torch.int8)
        self.scales = torch.empty(kv_heads, slots, 1)

    @property
    def shape(self) -> Sequence[int]:
        return self.levels.shape

    def index_select(self, dim: int, index: Tensor, /) -> Tensor:
        return self.levels.index_select(dim, index) * self.scales.index_select(dim, index)

    def index_copy_(self, dim: int, index: Tensor, source: Tensor, /) -> None:
        peak = source.abs().amax(-1, keepdim=True)
        inverse = torch.where(peak > 0, 127 / peak, 0.0)
        levels = (source * inverse).round().nan_to_num().clamp(-127, 127)
        poison = (source * 0).sum(-1, keepdim=True)
        self.levels.index_copy_(dim, index, levels.to(torch.int8))
        self.scales.index_copy_(dim, index, peak / 127 + poison)


class LastNumbers:
    """The last numbers of each vector of another cache, for values that are parts of keys."""

    def __init__(self, rows: KVRows, count: int) -> None:
        self._rows = rows
        self._count = count
        self.dtype = rows.dtype

    @property
    def shape(self) -> Sequence[int]:
        return (*self._rows.shape[:2], self._count)

    def index_select(self, dim: int, index: Tensor, /) -> Tensor:
        found = self._rows.index_select(dim, index)
        # A product of a matrix with gaps between its rows might be summed in another order.
        return found[..., found.shape[-1] - self._count :].contiguous()

    def index_copy_(self, dim: int, index: Tensor, source: Tensor, /) -> None:
        raise TypeError("these values are parts of keys, and written with them")


class RowsOfBlocks:
    """Vectors that lie in parts of blocks: [1, places, size], of which each block has as many."""

    def __init__(self, part: Tensor, size: int) -> None:
        """part: [blocks, numbers], a multiple of `size` in each block."""
        self._rows = part.unflatten(1, (-1, size))
        self.dtype = part.dtype

    @property
    def shape(self) -> Sequence[int]:
        blocks, places, size = self._rows.shape
        return 1, blocks * places, size

    def index_select(self, dim: int, index: Tensor, /) -> Tensor:
        return self._rows[self._at(index)][None]

    def index_copy_(self, dim: int, index: Tensor, source: Tensor, /) -> None:
        self._rows[self._at(index)] = source[0]

    def _at(self, index: Tensor) -> tuple[Tensor, Tensor]:
        places = self._rows.shape[1]
        return index // places, index % places


def write_rows(vectors: Tensor, cache: KVRows, slots: Tensor) -> None:
    """Stores each row's vectors, [rows, kv_heads, head_dim], in its slot. Modifies the cache.

    `slots` is [rows] int64, distinct.
    """
    cache.index_copy_(1, slots, vectors.transpose(0, 1).to(cache.dtype))


def write_kv(
    key: Tensor, value: Tensor, key_cache: KVRows, value_cache: KVRows, slots: Tensor
) -> None:
    """Stores each row's key and value in its slot. Modifies both caches.

    `key` and `value` are [rows, kv_heads, head_dim]. `slots` is [rows] int64, distinct.
    """
    write_rows(key, key_cache, slots)
    write_rows(value, value_cache, slots)
