"""A layer of the slow decoder in float64: its matrices, and its feed-forward half."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from penstock.model.layer_spec import XIELU, LayerSpec
from penstock_kernels.cpu.matrix import SOURCES, MatrixKind, PackedMatrix
from penstock_kernels.cpu.operands import NormWeights
from penstock_worker.forward.cpu.weights import ExpertWeights
from tests.kernels.cpu import slow
from tests.kernels.cpu.sources import Source


@dataclass(frozen=True)
class SlowMatrix:
    source: Source
    kind: MatrixKind | None
    bias: np.ndarray | None = None
    two_parts: bool = False

    @cached_property
    def values(self) -> np.ndarray:
        return slow.weights_as(self.source, self.kind)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        kind = self.kind or SOURCES[self.source.format].kind
        given = slow.input_as(x.astype(np.float32), kind, self.two_parts)
        return given @ self.values.T + (0 if self.bias is None else self.bias)

    def packed(self) -> PackedMatrix:
        return self.source.packed(kind=self.kind, bias=self.bias)


@dataclass
class SlowLayer:
    spec: LayerSpec
    matrices: dict[str, SlowMatrix]
    norms: dict[str, NormWeights] = field(default_factory=dict)
    sinks: np.ndarray | None = None
    experts: list[dict[str, SlowMatrix]] = field(default_factory=list)
    router: SlowMatrix | None = None
    correction: np.ndarray | None = None
    shared_gate: SlowMatrix | None = None

    def expert_weights(self) -> ExpertWeights | None:
        if self.router is None:
            return None
        each = [
            {name: matrix.packed() for name, matrix in expert.items()} for expert in self.experts
        ]
        return ExpertWeights(
            router=self.router.packed(),
            gates=tuple(expert["gate"] for expert in each if "gate" in expert),
            ups=tuple(expert["up"] for expert in each),
            downs=tuple(expert["down"] for expert in each),
            correction=self.correction,
            shared_gate=None if self.shared_gate is None else self.shared_gate.packed(),
        )


ACTIVATIONS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
}


def xielu(x: np.ndarray, said: XIELU) -> np.ndarray:
    slope = said.beta * x
    above = np.log1p(np.exp(said.alpha_p)) * x * x + slope
    factor = said.beta + np.log1p(np.exp(said.alpha_n))
    return np.where(x > 0, above, (np.expm1(np.minimum(x, said.eps)) - x) * factor + slope)


def feed_forward(
    spec: LayerSpec,
    matrices: dict[str, SlowMatrix],
    x: np.ndarray,
    limit: float | None = None,
    norm: NormWeights | None = None,
) -> np.ndarray:
    up = matrices["up"](x)
    if spec.feed_forward.activation == "clamped_swiglu":
        gate = np.minimum(matrices["gate"](x), 7)
        return matrices["down"](gate / (1 + np.exp(-1.702 * gate)) * (np.clip(up, -7, 7) + 1))
    if spec.feed_forward.xielu is not None:
        return matrices["down"](xielu(up, spec.feed_forward.xielu))
    activate = ACTIVATIONS[spec.feed_forward.activation]
    if spec.feed_forward.gated:
        gate, least = matrices["gate"](x), spec.feed_forward.gate_limit
        if least is not None:
            gate, up = np.minimum(gate, least), np.clip(up, -least, least)
        gate, most = activate(gate), np.inf if limit is None else limit
        inner = np.minimum(gate, most) * np.clip(up, -most, most)
        return matrices["down"](normalise(inner, norm))
    return matrices["down"](normalise(activate(up), norm))


def expert_shares(layer: SlowLayer, raw: np.ndarray) -> np.ndarray:
    """The share of each expert, for each row; 0 for one that isn't chosen."""
    said = layer.spec.feed_forward.experts
    assert said is not None
    if said.router == "sparse_mixer":
        return np.stack([_sparse_mixer(row, said.active, said.nearness) for row in raw])
    scores = 1 / (1 + np.exp(-raw))
    if said.router == "softmax":
        scores = np.exp(raw) / np.exp(raw).sum(-1, keepdims=True)
    elif said.router == "sqrt_softplus":
        scores = np.sqrt(np.log1p(np.exp(raw)))
    ranked = scores if layer.correction is None else scores + layer.correction
    shares = np.zeros_like(scores)
    for row, order in enumerate(ranked):
        groups = order.reshape(said.groups, -1)
        best = np.argsort(-np.sort(groups)[:, -2:].sum(-1))[: said.active_groups]
        open_groups = np.isin(np.arange(said.groups), best).repeat(groups.shape[1])
        chosen = np.argsort(-np.where(open_groups, order, -np.inf))[: said.active]
        shares[row, chosen] = scores[row, chosen]
    if said.normalised:
        shares /= shares.sum(-1, keepdims=True) + said.sum_floor
    return shares * said.scale


def _sparse_mixer(raw: np.ndarray, active: int, nearness: float) -> np.ndarray:
    """SparseMixer's shares of one row."""
    shares, left = np.zeros_like(raw), list(range(len(raw)))
    for _ in range(active):
        best = max(left, key=lambda at: raw[at])
        near = [at for at in left if raw[best] - raw[at] <= nearness * max(abs(raw[at]), raw[best])]
        shares[best] = 1 / np.exp(raw[near] - raw[best]).sum()
        left.remove(best)
    return shares


def normalise(x: np.ndarray, norm: NormWeights | None) -> np.ndarray:
    if norm is None:
        return x
    if norm.kind == "layer":
        x = x - x.mean(-1, keepdims=True)
    normed = x / np.sqrt((x * x).mean(-1, keepdims=True) + norm.eps) * norm.weight
    return normed if norm.bias is None else normed + norm.bias
