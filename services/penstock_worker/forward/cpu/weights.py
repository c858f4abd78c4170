"""Weights in the CPU kernels' layout, by what they are in a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock_kernels.cpu.matrix import PackedMatrix
from penstock_kernels.cpu.program import NormWeights, RotationTable


@dataclass(frozen=True, kw_only=True)
class ExpertWeights:
    """Weights of a mixture of experts."""

    router: PackedMatrix
    ups: tuple[PackedMatrix, ...]
    downs: tuple[PackedMatrix, ...]
    gates: tuple[PackedMatrix, ...] = ()
    """Empty for experts without a gate."""
    correction: np.ndarray | None = None
    """[experts] float32, added for choosing only."""
    shared_gate: PackedMatrix | None = None
    """One output: the logit of the weight of the expert that every token has."""


@dataclass(frozen=True, kw_only=True)
class LatentWeights:
    """Weights of attention over latents, besides those that make queries and the output."""

    down: PackedMatrix
    """Makes a token's latent, and behind it what rotates."""
    norm: NormWeights
    to_latents: tuple[PackedMatrix, ...]
    """A head's map of the part of a query that doesn't rotate."""
    to_values: tuple[PackedMatrix, ...]
    """A head's map of latents."""
    query_down: PackedMatrix | None = None
    """Makes the vector that queries are made of; None: they are made of the hidden state."""
    query_norm: NormWeights | None = None
    """Of that vector."""


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """Weights of a layer. A norm that the layer doesn't have is None."""

    query: PackedMatrix
    output: PackedMatrix
    key: PackedMatrix | None = None
    value: PackedMatrix | None = None
    latent: LatentWeights | None = None
    """In place of `key` and `value`."""
    up: PackedMatrix | None = None
    """Of the feed-forward, or of the expert that every token has; so are `down` and `gate`."""
    down: PackedMatrix | None = None
    gate: PackedMatrix | None = None
    experts: ExpertWeights | None = None
    attention_norm: NormWeights | None = None
    feed_forward_norm: NormWeights | None = None
    attention_output_norm: NormWeights | None = None
    feed_forward_output_norm: NormWeights | None = None
    query_norm: NormWeights | None = None
    key_norm: NormWeights | None = None
    sinks: np.ndarray | None = None
    """[heads] float32."""


@dataclass(frozen=True, kw_only=True)
class ModelWeights:
    """Weights of a model, or of a rank's part of it."""

    layers: Sequence[LayerWeights]
    """Of the rank's stage."""
    embedding: PackedMatrix | None
    """Of the first stage."""
    head: PackedMatrix | None
    """Of the last stage; so is `norm`."""
    norm: NormWeights | None
    """Behind the last layer."""
    rotations: Sequence[RotationTable]
    """One for each of ModelConfig.ropes."""
    embedding_norm: NormWeights | None = None
