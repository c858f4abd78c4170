"""What the rest of the worker needs from a paged KV cache and the attention over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from penstock.model_config import ModelConfig


@dataclass(frozen=True)
class CacheShape:
    """Sizes of a KV cache. block_size: tokens per block.

    dtype: of what is stored; int8 has a float32 scale for each token's key and value of a head.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype

    @staticmethod
    def of(config: ModelConfig, block_size: int, dtype: torch.dtype) -> CacheShape:
        """What this model needs, or this rank's part of one."""
        return CacheShape(
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            block_size=block_size,
            dtype=dtype,
        )


@dataclass(frozen=True)
class BatchLayout:
    """The sequences of one step. Row r of the step's tensors belongs to the sequences in order;
    rows beyond the sum of counts are padding.

    block_tables: per sequence, int64 physical blocks in token order, enough for its tokens.
    starts: [sequences] tokens computed before; counts: [sequences] tokens computed now, each at
    least 1.
    """

    block_tables: Sequence[np.ndarray]
    starts: np.ndarray
    counts: np.ndarray

    @cached_property
    def positions(self) -> np.ndarray:
        """[rows without padding] int64, each one's place in its sequence."""
        first = np.cumsum(self.counts) - self.counts
        return np.arange(self.counts.sum()) - np.repeat(first - self.starts, self.counts)


@dataclass(frozen=True)
class Rotation:
    """cos, sin: [positions, head_dim / 2] float32, of every position.  positions: [rows] int64."""

    cos: Tensor
    sin: Tensor
    positions: Tensor

    @cached_property
    def rows(self) -> tuple[Tensor, Tensor]:
        """Cosines and sines of each row, [rows, head_dim / 2]."""
        return self.cos[self.positions], self.sin[self.positions]


@dataclass(frozen=True)
class HeadNorms:
    """RMS norms over each head of queries and keys. query, key: [head_dim] weights."""

    query: Tensor
    key: Tensor
    eps: float


class StepAttention(Protocol):
    """Attention of one step's batch. Called by each layer in turn."""

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rotation: Rotation,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        """Norm and rotate queries and keys, store keys and values in the layer's cache, then attend
        to each sequence's whole past.

        Mutates the cache, in the slots of the step's tokens only.
        query: [rows, heads, head_dim]; key, value: [rows, kv_heads, head_dim], the heads of a row
        lie together; of any float dtype, which the result has too.  Causal, scaled by
        head_dim ** -0.5.
        Returns [rows, heads, head_dim]; padding rows are zero.  A sequence's rows have the same
        bits whatever else the batch holds, however its tokens were cut into chunks, and for
        every block size.
        """


class AttentionBackend(Protocol):
    """A paged KV cache and its kernels. Made once, after the weights; holds the cache's memory.

    The constructor allocates num_blocks blocks (and what it needs beside them); MemoryError or
    torch's RuntimeError when there is no room.
    """

    name: ClassVar[str]

    def __init__(self, shape: CacheShape, num_blocks: int) -> None: ...

    @staticmethod
    def block_bytes(shape: CacheShape) -> int:
        """Memory of one block over all layers."""

    def kv_blocks(self) -> list[np.ndarray]:
        """Views of the cache, each [blocks, bytes] uint8: row b of all is block b."""

    def plan(self, layout: BatchLayout) -> StepAttention:
        """Prepare one step. Doesn't touch the cache. Called once per step, by the runner."""
