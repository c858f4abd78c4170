"""Attention to an encoder's output, whose keys and values stand in the KV cache.

A sequence's first rows are the encoder's (CrossAttentionSpec): at their places the cache has each
layer's keys and values of them, and after these its own of the decoder's tokens. So they are
found, evicted and computed again as those of any other token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from penstock_worker.attention.interface import BatchLayout, StepAttention

if TYPE_CHECKING:
    from torch import Tensor


class EncodedAttention(Protocol):
    """Attention to an encoder's output for one step's batch. Called by each layer in turn."""

    def store(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Stores the layer's keys and values of the encoder's rows in this step, [rows, kv_heads,
        head_dim]; rows beyond those of the step are padding."""

    @property
    def seeing(self) -> Tensor | None:
        """[rows, 1]: 1 of the decoder's rows that see any of the encoder's, 0 of others; None: all
        do."""

    def attend(self, layer: int, query: Tensor) -> Tensor:
        """The attention of the decoder's rows, [rows, heads, head_dim], to all of their sequence's
        encoder rows. Returns the same shape, in which padding rows are zero. A row has the same
        bits whatever else is in the batch."""


class ObservedEncoded:
    """EncodedAttention of which some heads' keys and queries are kept."""

    def __init__(self, inner: EncodedAttention, heads: Sequence[tuple[int, int]]) -> None:
        """heads: (layer, head) of each."""
        self._inner = inner
        self._heads = heads
        self._layers = {layer for layer, _ in heads}
        self._keys: dict[int, Tensor] = {}
        self._queries: dict[int, Tensor] = {}

    seeing: Tensor | None = None

    def store(self, layer: int, key: Tensor, value: Tensor) -> None:
        if layer in self._layers:
            self._keys[layer] = key
        self._inner.store(layer, key, value)

    def attend(self, layer: int, query: Tensor) -> Tensor:
        if layer in self._layers:
            self._queries[layer] = query
        return self._inner.attend(layer, query)

    def keys(self, rows: int, head_dim: int) -> Tensor:
        """Keys of the step's first `rows` rows of the encoder, [rows, heads, head_dim] float32."""
        return self._picked(self._keys, rows, head_dim)

    def queries(self, rows: int, head_dim: int) -> Tensor:
        """Queries of the step's first `rows` rows of the decoder, [rows, heads, head_dim]
        float32."""
        return self._picked(self._queries, rows, head_dim)

    def _picked(self, seen: dict[int, Tensor], rows: int, head_dim: int) -> Tensor:
        if not seen:
            return torch.empty(0, len(self._heads), head_dim)
        return torch.stack([seen[layer][:rows, head] for layer, head in self._heads], 1).float()


class NothingEncoded:
    """Stands for the encoder of a model without one, none of whose layers asks for it."""

    seeing: Tensor | None = None

    def store(self, layer: int, key: Tensor, value: Tensor) -> None:
        raise TypeError("the model has no encoder")

    def attend(self, layer: int, query: Tensor) -> Tensor:
        raise TypeError("the model has no encoder")


NOTHING_ENCODED: EncodedAttention = NothingEncoded()


@dataclass(frozen=True)
class Division:
    """Which rows of a batch are an encoder's, and which a decoder's."""

    decoded: np.ndarray
    """[n] int64: the decoders' rows, in order."""
    counts: np.ndarray
    """[sequences]: how many of them each sequence has."""
    positions: np.ndarray
    """[n] int64: their positions among the decoder's tokens."""

    @staticmethod
    def of(starts: np.ndarray, counts: np.ndarray, encoder_rows: int) -> Division:
        """starts, counts: [sequences], tokens computed before, and in this step."""
        first = np.cumsum(counts) - counts
        positions = np.arange(counts.sum()) - np.repeat(first - starts, counts)
        decoded = (positions >= encoder_rows).nonzero()[0]
        encoded = np.clip(encoder_rows - starts, 0, counts)
        return Division(decoded, counts - encoded, positions[decoded] - encoder_rows)

    def find(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of these rows of the batch are a decoder's: their places in `rows`, and which of
        the decoders' rows they are; each [n] int64."""
        if not len(self.decoded):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        found = np.minimum(np.searchsorted(self.decoded, rows), len(self.decoded) - 1)
        places = (self.decoded[found] == rows).nonzero()[0]
        return places, found[places]


@dataclass(frozen=True)
class DividedStep:
    """The attention of a step whose batch has rows of encoders and of decoders."""

    division: Division
    own: StepAttention
    """Attention of the decoders' rows, among the decoder's tokens."""
    encoded: EncodedAttention


class DividingCache(Protocol):
    """A KV cache whose sequences begin with an encoder's rows."""

    def kv_blocks(self) -> list[np.ndarray]:
        """Returns views of the cache, each [blocks, bytes] uint8 (see AttentionBackend)."""

    def divide(self, layout: BatchLayout, stored: np.ndarray) -> DividedStep:
        """Prepares one step. stored: [n] int64, rows of the batch whose encoding is there, each one
        of an encoder's."""
