"""The kernels that encoders are computed with, and the reference kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from penstock.model.config import ModelConfig
from penstock_kernels.reference import encoder as kernels
from penstock_kernels.reference.tiling import pad_rows
from penstock_worker.attention.interface import (
    PLAIN_RULE,
    HeadNorms,
    Rotation,
    ScoreRule,
    StepAttention,
)
from penstock_worker.attention.reference import normalised_and_rotated
from penstock_worker.layers.parts import DecoderOps
from penstock_worker.layers.reference_ops import REFERENCE, ReferenceOps
from penstock_worker.quantisation.interface import Product
from penstock_worker.weights.weights import Matrix, plain


@dataclass(frozen=True)
class EncoderStep:
    """The inputs of a step on the device, one after another, then padding if the kernels need
    it."""

    tokens: Tensor
    """Token id of each row, [rows] int64."""
    positions: Tensor
    """Position of each row in its text, [rows] int64."""
    types: Tensor
    """Token type of each row, [rows] int64, where the model has any."""
    attention: StepAttention
    """Attention within each input. The rows of an input have the same bits whatever else is in the
    step."""


class EncoderKernels(Protocol):
    """One set of kernels. Tensors are on its device. An input's result never depends on the others
    (for products see TritonOps)."""

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
        """Returns one step.

        `tokens`, `positions`, `types`: [tokens] int64 on the host.
        `lengths`: tokens of each input.
        `bias`: [heads, 2 * positions - 1]; the bias on a score whose key is `d` tokens after the
        query is in column d + positions - 1.
        `causal`: whether tokens see those before them only.
        `seen`: see Inputs.
        """


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
        if rule.chunk is not None or rule.sinks is not None or rule.chosen or rule.causal:
            raise ValueError(f"an encoder's attention has no such rule: {rule}")
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


class TiledProduct:
    """A product over whole tiles of rows, which are filled up."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.outputs = weight.shape[0]
        self.weight = kernels.lane_padded(weight)
        self.bias = weight.new_zeros(self.weight.shape[0])
        if bias is not None:
            self.bias[: self.outputs] = bias

    def __call__(self, x: Tensor) -> Tensor:
        found = kernels.tiled_linear(kernels.pad_tiles(x), self.weight, self.bias)
        return found[: len(x), : self.outputs].contiguous()


class TiledOps(ReferenceOps):
    """Plain torch, in larger tiles than a decoder's, of which a step has fewer rows."""

    def product(self, weight: Matrix, bias: Tensor | None = None) -> Product:
        return TiledProduct(plain(weight), bias)

    def activate(self, x: Tensor, kind: str, *, gated: bool, limit: float | None = None) -> Tensor:
        if not gated:
            return kernels.activate(x, kind)
        gate, up = x.chunk(2, -1)
        return kernels.activate(gate.contiguous(), kind) * up


@dataclass(frozen=True)
class FusedWithinInputs:
    """StepAttention within each input, all of whose tokens see each other, by torch's kernel."""

    lengths: list[int]
    """Tokens of each input."""
    bias: Tensor | None
    """[heads, longest, longest], or None."""
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
        if rule != PLAIN_RULE:
            raise ValueError(f"torch's kernel has no such rule: {rule}")
        query, key = normalised_and_rotated(query, key, rotation, norms)
        return kernels.attend(query, key, value, self.lengths, self.bias, self.seen)


class ReferenceKernels:
    """Plain torch on the CPU. Steps are filled up to whole tiles."""

    def __init__(self, config: ModelConfig) -> None:
        """`config`: the encoder's layers."""
        self._tiled = config.is_like_bert
        self.ops: DecoderOps = TiledOps() if self._tiled else REFERENCE

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
        pad = kernels.pad_tiles if self._tiled else pad_rows
        padded = [pad(torch.from_numpy(each)) for each in (tokens, positions, types)]
        attention: StepAttention = WithinInputs(lengths, causal, seen)
        if self._tiled and causal:
            raise ValueError("in BERT and its relatives, all tokens see each other")
        if self._tiled:
            attention = FusedWithinInputs(lengths, _bias_by_position(bias, max(lengths)), seen)
        return EncoderStep(padded[0], padded[1], padded[2], attention)


def _bias_by_position(bias: Tensor | None, longest: int) -> Tensor | None:
    """Returns [heads, longest, longest], in which entry (i, j) is the bias of distance j - i."""
    if bias is None:
        return None
    place = torch.arange(longest)
    return bias[:, place[None, :] - place[:, None] + bias.shape[1] // 2]
