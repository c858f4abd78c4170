"""Attention to an encoder's output, whose keys and values stand in the KV cache.

A sequence's first rows are the encoder's (CrossAttentionSpec): at their places the cache has each
layer's keys and values of them, and behind these its own of the decoder's tokens. So they are
found, evicted and computed again as those of any other token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from penstock_worker.attention.interface import BatchLayout, StepAttention


class EncodedAttention(Protocol):
    """For one step's batch. Called by each layer in turn."""

    def store(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Stores the layer's keys and values of the encoder's rows in this step, [rows, kv_heads,
        head_dim]; rows beyond those of the step are padding."""

    def attend(self, layer: int, query: Tensor) -> Tensor:
        """The attention of the decoder's rows, [rows, heads, head_dim], to all of their sequence's
        encoder rows. Returns the same shape, in which padding rows are zero. A row has the same
        bits whatever else is in the batch."""


class NothingEncoded:
    """Of a model without an encoder, none of whose layers asks for it."""

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
        """Of these rows of the batch the places in `rows` of those that are a decoder's, and which
        of the decoders' rows they are; each [n] int64."""
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
    """Of the decoders' rows, among the decoder's tokens."""
    encoded: EncodedAttention


class DividingCache(Protocol):
    """A KV cache whose sequences begin with an encoder's rows."""

    def kv_blocks(self) -> list[np.ndarray]:
        """See AttentionBackend."""

    def divide(self, layout: BatchLayout, stored: np.ndarray) -> DividedStep:
        """Prepares one step. stored: [n] int64, rows of the batch whose encoding is there, each one
        of an encoder's."""
