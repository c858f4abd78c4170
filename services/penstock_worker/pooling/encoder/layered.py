"""Encoders with a decoder's layers. Attention looks both ways, or back only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from penstock.model.config import EncoderConfig, ModelConfig
from penstock_kernels.reference.tiling import padded_rows
from penstock_worker.adapters.interface import ProductAdapters
from penstock_worker.attention.interface import (
    PLAIN_RULE,
    HeadNorms,
    Rotation,
    ScoreRule,
)
from penstock_worker.attention.reference import normalised_and_rotated
from penstock_worker.layers.parts import DecoderOps
from penstock_worker.layers.reference_ops import REFERENCE
from penstock_worker.models.decoder import DecoderModel, headless
from penstock_worker.pooling.encoder.ops import EncoderStep
from penstock_worker.weights.weights import Weights


@dataclass(frozen=True)
class WithinInputs:
    """StepAttention within each input. It keeps nothing."""

    lengths: list[int]
    """Tokens of each input."""
    causal: bool = False
    """Whether tokens see those before them only."""
    seen: list[int] | None = None
    """How many tokens of each input its tokens see; None: all (`Inputs.seen`)."""

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rotation: Rotation | None,
        norms: HeadNorms | None = None,
        rule: ScoreRule = PLAIN_RULE,
    ) -> Tensor:
        query, key = normalised_and_rotated(query, key, rotation, norms)
        out = torch.zeros(query.shape, dtype=query.dtype)
        start = 0
        for length, keys in zip(self.lengths, self.seen or self.lengths, strict=True):
            rows, seen = slice(start, start + length), slice(start, start + keys)
            out[rows] = _within(query[rows], key[seen], value[seen], rule, causal=self.causal)
            start = rows.stop
        return out


def _within(query: Tensor, key: Tensor, value: Tensor, rule: ScoreRule, *, causal: bool) -> Tensor:
    """Attention of one input's tokens to its first ones: [tokens, heads, head_dim], computed in
    float32."""
    shared = query.shape[1] // key.shape[1]
    wide = [each.float().transpose(0, 1).contiguous() for each in (query, key, value)]
    keys, values = (each.repeat_interleave(shared, 0) for each in wide[1:])
    scale = query.shape[-1] ** -0.5 if rule.scale is None else rule.scale
    scores = wide[0] @ keys.transpose(1, 2) * scale
    if rule.soft_cap is not None:
        scores = torch.tanh(scores / rule.soft_cap) * rule.soft_cap
    if rule.window is not None:
        place = torch.arange(query.shape[0])
        hidden = (place[:, None] - place[None, : key.shape[0]]).abs() >= rule.window
        scores = scores.masked_fill(hidden, -torch.inf)
    if causal:
        ahead = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(ahead, -torch.inf)
    return (torch.softmax(scores, -1) @ values).transpose(0, 1).to(query.dtype)


class LayeredKernels(Protocol):
    """One set of kernels. An input's result never depends on the others (for products see
    TritonOps)."""

    @property
    def ops(self) -> DecoderOps: ...

    def lay_out(
        self,
        tokens: np.ndarray,
        positions: np.ndarray,
        types: np.ndarray,
        lengths: list[int],
        bias: Tensor | None = None,
        *,
        causal: bool = False,
        seen: list[int] | None = None,
    ) -> EncoderStep:
        """Lays out a step (see EncoderOps)."""


class ReferenceLayered:
    """Plain torch."""

    ops = REFERENCE

    def lay_out(
        self,
        tokens: np.ndarray,
        positions: np.ndarray,
        types: np.ndarray,
        lengths: list[int],
        bias: Tensor | None = None,
        *,
        causal: bool = False,
        seen: list[int] | None = None,
    ) -> EncoderStep:
        padding = (0, padded_rows(len(tokens)) - len(tokens))
        padded = [torch.from_numpy(np.pad(each, padding)) for each in (tokens, positions, types)]
        return EncoderStep(padded[0], padded[1], padded[2], WithinInputs(lengths, causal, seen))


IN_TORCH: LayeredKernels = ReferenceLayered()


class LayeredEncoder:
    """An encoder with a decoder's layers, and with EncoderModel's interface."""

    def __init__(
        self,
        config: EncoderConfig,
        layers: ModelConfig,
        weights: Weights,
        positions: int,
        adapters: ProductAdapters | None = None,
        kernels: LayeredKernels = IN_TORCH,
    ) -> None:
        """`positions`: tokens that an input may have; `adapters`: of rows; `kernels`: for the
        device of the weights. Raises UnsupportedModel for weights that don't fit the
        configuration."""
        self.config = config
        self._kernels = kernels
        self._model = DecoderModel(
            headless(layers), weights, positions, kernels.ops, adapters=adapters
        )

    def hidden(
        self,
        tokens: np.ndarray,
        types: np.ndarray,
        lengths: list[int],
        layer_done: Callable[[], None],
        seen: list[int] | None = None,
    ) -> Tensor:
        """Returns hidden states (see EncoderModel.hidden). The model has no token types."""
        positions = np.concatenate([np.arange(length) for length in lengths])
        causal = self.config.causal
        step = self._kernels.lay_out(tokens, positions, types, lengths, causal=causal, seen=seen)
        rows = self._model.hidden(step.tokens, step.positions, step.attention, layer_done)
        return self._model.norm(rows)
