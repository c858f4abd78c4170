"""A decoder-only transformer by the CPU kernels: one call computes one step."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import numpy as np

from penstock_kernels.cpu.library import load
from penstock_kernels.cpu.matrix import PackedMatrix
from penstock_kernels.cpu.memory import Scratch, zeroed
from penstock_kernels.cpu.structs import PkBatch, PkLayer, PkModel

PAGE = 16
"""Tokens per page of the cache. A KV block is a whole number of pages."""
MAX_GROUP = 32
"""Most query heads that can share a KV head."""
MAX_HEAD_DIM = 1024


@dataclass(frozen=True)
class CacheKind:
    """How the KV cache stores numbers."""

    number: int
    """PkCache in csrc/types.h."""
    value_bytes: int
    """Bytes per number."""
    scale_bytes: int = 0
    """Bytes of the scale of each head's vector."""


CACHE_KINDS = {
    "float32": CacheKind(0, 4),
    "bfloat16": CacheKind(1, 2),
    "int8": CacheKind(2, 1, scale_bytes=4),
}
"""By dtype of the KV cache."""


@dataclass(frozen=True)
class DecoderShape:
    """Sizes of a model."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    block_size: int
    """Tokens per KV block."""
    eps: float

    def obstacle(self) -> str | None:
        """Returns why the kernels can't run this shape, or None if they can."""
        if self.head_dim % 16:
            return f"head_dim is {self.head_dim}, not a multiple of 16"
        if self.block_size % PAGE:
            return f"kv_block_size is {self.block_size}, not a multiple of {PAGE}"
        if self.head_dim > MAX_HEAD_DIM:
            return f"head_dim is {self.head_dim}; at most {MAX_HEAD_DIM} is possible"
        if self.heads % self.kv_heads:
            return f"{self.heads} query heads can't share {self.kv_heads} KV heads evenly"
        if self.heads // self.kv_heads > MAX_GROUP:
            return f"{self.heads // self.kv_heads} query heads share a KV head; at most {MAX_GROUP}"
        return None

    def block_bytes(self, cache: str, layers: int) -> int:
        """Returns the size of a KV block over all layers."""
        kind = CACHE_KINDS[cache]
        per_head = self.head_dim * kind.value_bytes + kind.scale_bytes
        return 2 * self.kv_heads * per_head * self.block_size * layers


@dataclass(frozen=True)
class LayerWeights:
    """Weights of a layer. Norms are float32 vectors."""

    query: PackedMatrix
    key: PackedMatrix
    value: PackedMatrix
    output: PackedMatrix
    gate: PackedMatrix
    up: PackedMatrix
    down: PackedMatrix
    attention_norm: np.ndarray
    feed_forward_norm: np.ndarray
    query_norm: np.ndarray | None = None
    """[head_dim]; None if queries aren't normalised."""
    key_norm: np.ndarray | None = None
    """[head_dim]; None if keys aren't normalised."""


@dataclass(frozen=True)
class DecoderStep:
    """The input of one step; rows are ordered by sequence. All arrays are int32 and contiguous."""

    tokens: np.ndarray
    """[rows]."""
    first_row: np.ndarray
    """[sequences + 1]: the first row of each sequence, then the number of rows."""
    starts: np.ndarray
    """[sequences]: tokens computed before."""
    tables: np.ndarray
    """KV blocks of all sequences, one sequence after another."""
    first_block: np.ndarray
    """[sequences]: where the blocks of each sequence begin in `tables`."""


@dataclass
class Decoder:
    """Weights, KV cache and scratch memory of one model.

    Raises ValueError for a shape with an obstacle, MemoryError if there is no room.
    """

    shape: DecoderShape
    layers: list[LayerWeights]
    embedding: PackedMatrix
    head: PackedMatrix
    norm: np.ndarray
    cosines: np.ndarray
    """[positions, head_dim / 2] float32."""
    sines: np.ndarray
    """[positions, head_dim / 2] float32."""
    num_blocks: int
    cache: str
    """A key of CACHE_KINDS."""
    threads: int
    _scratch: Scratch = field(default_factory=Scratch)

    def __post_init__(self) -> None:
        obstacle = self.shape.obstacle()
        if obstacle is not None:
            raise ValueError(obstacle)
        self._layers_done = np.zeros(1, dtype=np.int64)
        self._cancelled = np.zeros(1, dtype=np.int32)
        half = self.shape.block_bytes(self.cache, 1) * self.num_blocks // 2
        self._caches = [(zeroed(half), zeroed(half)) for _ in self.layers]
        self._structs = (PkLayer * len(self.layers))(
            *(_layer(w, c) for w, c in zip(self.layers, self._caches, strict=True))
        )
        self._model = self._describe()

    @property
    def layers_done(self) -> int:
        """Layers computed since the start. May be read from another thread during a step."""
        return int(self._layers_done[0])

    @property
    def cancelled(self) -> bool:
        return bool(self._cancelled[0])

    def cancel(self) -> None:
        """May be called from another thread: this step, and every later one, ends after its current
        layer. What `logits` returns is then meaningless."""
        self._cancelled[0] = 1

    def kv_blocks(self) -> list[np.ndarray]:
        """Returns views of the cache, [num_blocks, bytes] uint8: keys and values of each layer."""
        return [half.reshape(self.num_blocks, -1) for pair in self._caches for half in pair]

    def logits(self, step: DecoderStep, rows: np.ndarray) -> np.ndarray:
        """Computes the step, writes its keys and values, and returns the logits of some rows.

        `rows` is [n] int32. Returns [n, vocab] float32. A row's bits depend on its sequence alone.
        """
        out = np.empty((len(rows), self.shape.vocab), dtype=np.float32)
        batch = PkBatch(
            rows=len(step.tokens),
            sequences=len(step.starts),
            num_wanted=len(rows),
            tokens=step.tokens.ctypes.data,
            first_row=step.first_row.ctypes.data,
            starts=step.starts.ctypes.data,
            tables=step.tables.ctypes.data,
            first_block=step.first_block.ctypes.data,
            wanted=rows.ctypes.data,
            logits=out.ctypes.data,
            layers_done=self._layers_done.ctypes.data,
            cancelled=self._cancelled.ctypes.data,
        )
        library = load()
        model, given = ctypes.byref(self._model), ctypes.byref(batch)
        work = self._scratch.at_least(library.pk_forward_bytes(model, given))
        library.pk_forward(model, given, work)
        return out

    def _describe(self) -> PkModel:
        shape = self.shape
        return PkModel(
            hidden=shape.hidden,
            inner=shape.inner,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            num_layers=len(self.layers),
            vocab=shape.vocab,
            block_size=shape.block_size,
            cache=CACHE_KINDS[self.cache].number,
            threads=self.threads,
            eps=shape.eps,
            layers=self._structs,
            embedding=self.embedding.struct,
            head=self.head.struct,
            norm=self.norm.ctypes.data,
            cosines=self.cosines.ctypes.data,
            sines=self.sines.ctypes.data,
        )


def _layer(weights: LayerWeights, cache: tuple[np.ndarray, np.ndarray]) -> PkLayer:
    def address(vector: np.ndarray | None) -> int | None:
        return None if vector is None else int(vector.ctypes.data)

    return PkLayer(
        query=weights.query.struct,
        key=weights.key.struct,
        value=weights.value.struct,
        output=weights.output.struct,
        gate=weights.gate.struct,
        up=weights.up.struct,
        down=weights.down.struct,
        attention_norm=address(weights.attention_norm),
        feed_forward_norm=address(weights.feed_forward_norm),
        query_norm=address(weights.query_norm),
        key_norm=address(weights.key_norm),
        keys=address(cache[0]),
        values=address(cache[1]),
    )
