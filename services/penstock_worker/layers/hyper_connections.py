"""Several residuals that each half of a layer mixes (Xie et al., "Manifold-constrained
hyper-connections", 2026), as in DeepSeek-V4.

Residuals are [rows, count, hidden]. Weights are made and applied in float32. Sums over residuals
are made one after another, so that a row's bits depend on that row alone.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import torch

from penstock.model.layer_spec import HyperConnectionsSpec
from penstock_kernels import reference
from penstock_worker.layers.experts import MixtureOfExperts
from penstock_worker.layers.feed_forward import FeedForward
from penstock_worker.layers.parts import LayerAttention, Norm, Parts
from penstock_worker.layers.step import Step

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Maps:
    """Maps rows of all residuals, normalised, to logits of weights."""

    product: Tensor
    """[logits, count * hidden] float32."""
    base: Tensor
    """[logits] float32, is added."""
    scale: Tensor
    """[parts] float32: each part of the logits has a factor."""
    sizes: tuple[int, ...]
    """Logits of each part."""
    eps: float
    """Epsilon of the norm."""

    def __call__(self, residuals: Tensor) -> tuple[Tensor, ...]:
        """Maps [rows, count, hidden] to each part's logits, [rows, size] float32."""
        flat = residuals.flatten(1).float()
        normed = reference.rms_norm(flat, torch.ones(flat.shape[1]), self.eps)
        found = reference.linear(normed, self.product)
        parts = zip(found.split(self.sizes, 1), self.base.split(self.sizes), strict=True)
        scaled = zip(self.scale, parts, strict=True)
        return tuple(logits * factor + base for factor, (logits, base) in scaled)

    @staticmethod
    def load(parts: Parts, prefix: str, count: int, sizes: tuple[int, ...]) -> Maps:
        def taken(name: str, *shape: int) -> Tensor:
            return parts.weights.take(f"{prefix}.{name}", shape, torch.float32)

        total = sum(sizes)
        return Maps(
            taken("fn", total, count * parts.config.hidden_size),
            taken("base", total),
            taken("scale", len(sizes)),
            sizes,
            parts.config.norm.eps,
        )


def weighed(residuals: Tensor, weights: Tensor) -> Tensor:
    """Sums residuals, [rows, count, hidden], by weights, [rows, count] float32: [rows, hidden]
    float32."""
    total = residuals[:, 0].float() * weights[:, 0, None]
    for number in range(1, residuals.shape[1]):
        total = total + residuals[:, number].float() * weights[:, number, None]
    return total


def mixing(logits: Tensor, spec: HyperConnectionsSpec) -> Tensor:
    """Makes the matrix that mixes residuals, of which rows and columns sum to about 1, of logits,
    [rows, count * count] float32. [rows, count, count]: how much of each residual (second) is in
    each (third)."""
    square = logits.unflatten(1, (spec.count, spec.count))
    found = torch.exp(square - _over(square, 2, torch.maximum))
    found = found / _over(found, 2) + spec.eps
    found = found / (_over(found, 1) + spec.eps)
    for _ in range(spec.rounds - 1):
        found = found / (_over(found, 2) + spec.eps)
        found = found / (_over(found, 1) + spec.eps)
    return found


def _over(
    square: Tensor, axis: int, join: Callable[[Tensor, Tensor], Tensor] = operator.add
) -> Tensor:
    """Sums, or joins otherwise, over an axis, one after another."""
    return reduce(join, square.split(1, axis))


class HyperConnection:
    """What one half of a layer reads of the residuals, and how they take up what it gives."""

    def __init__(self, spec: HyperConnectionsSpec, maps: Maps) -> None:
        """`maps`: to weights of what is read, to weights of what is added, and to the matrix."""
        self._spec = spec
        self._maps = maps

    def read(self, residuals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns what the half reads, [rows, hidden], and what `written` needs."""
        read, added, square = self._maps(residuals)
        rows = weighed(residuals, reference.sigmoid(read) + self._spec.eps)
        return rows.to(residuals.dtype), 2.0 * reference.sigmoid(added), mixing(square, self._spec)

    def write(self, residuals: Tensor, given: Tensor, added: Tensor, mixed: Tensor) -> None:
        """Mixes the residuals, and adds what the half has given, [rows, hidden]."""
        found = [
            weighed(residuals, mixed[:, :, number]) + given.float() * added[:, number, None]
            for number in range(residuals.shape[1])
        ]
        for number, rows in enumerate(found):
            residuals[:, number] = rows

    @staticmethod
    def load(parts: Parts, prefix: str, spec: HyperConnectionsSpec) -> HyperConnection:
        count = spec.count
        sizes = (count, count, count * count)
        return HyperConnection(spec, Maps.load(parts, prefix, count, sizes))


class HyperEnds:
    """The two ends: one residual becomes several, and several become one."""

    def __init__(self, spec: HyperConnectionsSpec, maps: Maps) -> None:
        """`maps`: to weights of what is read in the end."""
        self._spec = spec
        self._maps = maps

    def begin(self, rows: Tensor) -> Tensor:
        """Maps embeddings, [rows, hidden], to [rows, count, hidden]."""
        return rows[:, None].repeat(1, self._spec.count, 1)

    def end(self, residuals: Tensor) -> Tensor:
        """Maps [rows, count, hidden] to what stands after the last layer, [rows, hidden]."""
        (read,) = self._maps(residuals)
        weights = reference.sigmoid(read) + self._spec.eps
        return weighed(residuals, weights).to(residuals.dtype)

    @staticmethod
    def load(parts: Parts, spec: HyperConnectionsSpec) -> HyperEnds:
        return HyperEnds(spec, Maps.load(parts, "hc_head", spec.count, (spec.count,)))


class HyperLayer:
    """A Layer of attention, and then feed-forward, around which residuals are mixed."""

    def __init__(
        self,
        attention: tuple[HyperConnection, Norm, LayerAttention],
        feed_forward: tuple[HyperConnection, Norm, FeedForward | MixtureOfExperts],
    ) -> None:
        self._attention_connection, self._attention_norm, self._attention = attention
        self._connection, self._norm, self._feed_forward = feed_forward

    def __call__(self, update: Tensor | None, residual: Tensor, step: Step) -> None:
        """Computes a Layer's rows of residuals [rows, count, hidden]. There is no update."""
        read, *weights = self._attention_connection.read(residual)
        given = self._attention(self._attention_norm(read), step)
        self._attention_connection.write(residual, given, *weights)
        read, *weights = self._connection.read(residual)
        normed = self._norm(read)
        if isinstance(self._feed_forward, MixtureOfExperts):
            given = self._feed_forward(normed, step.tokens)
        else:
            given = self._feed_forward(normed)
        self._connection.write(residual, given, *weights)

    @staticmethod
    def load(
        parts: Parts,
        layer: int,
        spec: HyperConnectionsSpec,
        norms: tuple[Norm, Norm],
        attention: LayerAttention,
        feed_forward: FeedForward | MixtureOfExperts,
    ) -> HyperLayer:
        """norms: before attention, and before the feed-forward."""
        first, second = (
            HyperConnection.load(parts, f"layers.{layer}.{name}", spec)
            for name in ("attn_hc", "ffn_hc")
        )
        return HyperLayer((first, norms[0], attention), (second, norms[1], feed_forward))
