"""The feed-forward block, gated (Shazeer, 2020) or not."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from penstock.errors import UnsupportedModel
from penstock.model.layer_spec import XIELU, FeedForwardSpec
from penstock_kernels.reference import xielu
from penstock_worker.layers.parts import (
    NormedInput,
    Ops,
    Parts,
)
from penstock_worker.quantisation.interface import Product
from penstock_worker.weights.weights import Weights

if TYPE_CHECKING:
    from torch import Tensor

Coefficients = tuple[float, float, float, float]
"""What reference.xielu is called with."""
ACTIVATION, SUB_NORM = "act_fn", "ffn_sub_norm"
"""What has the activation's coefficients, and the norm of what is projected down."""


class FeedForward:
    """Maps [rows, hidden] to [rows, hidden]."""

    def __init__(
        self,
        ops: Ops,
        spec: FeedForwardSpec,
        up: Product,
        down: Product,
        coefficients: Coefficients | None = None,
    ) -> None:
        """`up` gives [rows, 2 * inner], the gate first, or without a gate [rows, inner].
        coefficients: of the activation xielu."""
        self._ops = ops
        self._coefficients = coefficients
        self._spec = spec
        self.up = up
        self.down = down

    def __call__(self, hidden: Tensor) -> Tensor:
        spec, inner = self._spec, self.up(hidden)
        if spec.sparsity:
            inner = self._ops.sparse_gate(inner, spec.sparsity)
        if spec.gate_limit is not None:
            inner = limited(inner, spec.gate_limit)
        if self._coefficients is not None:
            return self.down(xielu(inner, self._coefficients))
        activated = self._ops.activate(inner, spec.activation, gated=spec.gated, limit=spec.limit)
        return self.down(activated)

    @staticmethod
    def sized(
        parts: Parts,
        spec: FeedForwardSpec,
        prefix: str,
        inner: int,
        *,
        width: int = 0,
        summed: bool = True,
    ) -> FeedForward:
        """Loads the network whose tensors' names begin with `prefix`, and which maps rows of
        `width` numbers; 0: of the hidden size. Not `summed`, its results are this rank's part of a
        sum over ranks."""
        hidden = width or parts.config.hidden_size
        names = ["gate_proj", "up_proj"] if spec.gated else ["up_proj"]
        up = parts.product([(f"{prefix}.{name}", inner) for name in names], hidden, bias=spec.bias)
        product = parts.summed if summed else parts.summand
        down = product(f"{prefix}.down_proj", hidden, inner, bias=spec.bias)
        if spec.sub_norm:
            down = NormedInput(parts.norm_of_inner(f"{prefix}.{SUB_NORM}", inner), down)
        return FeedForward(parts.ops, spec, up, down, coefficients(spec, parts.weights, prefix))

    @staticmethod
    def load(parts: Parts, layer: int) -> FeedForward:
        config = parts.config
        spec, prefix = config.layer(layer).feed_forward, f"layers.{layer}.mlp"
        return FeedForward.sized(parts, spec, prefix, config.inner(layer))


def coefficients(
    spec: FeedForwardSpec, weights: Weights | None, prefix: str
) -> Coefficients | None:
    """Returns the coefficients of a feed-forward whose tensors' names begin with `prefix`; None:
    its activation has none. weights: None where the spec has them. Raises UnsupportedModel for one
    that isn't finite."""
    if spec.activation != "xielu":
        return None
    said = spec.xielu
    if said is None and weights is not None:
        names = (f"{prefix}.{ACTIVATION}.{each}" for each in XIELU.__struct_fields__)
        said = XIELU(*map(weights.number, names))
    if said is None:
        raise UnsupportedModel(f"{prefix}.{ACTIVATION} has no coefficients")
    found = (
        math.log1p(math.exp(-abs(said.alpha_p))) + max(said.alpha_p, 0.0),
        math.log1p(math.exp(-abs(said.alpha_n))) + max(said.alpha_n, 0.0) + said.beta,
        said.beta,
        said.eps,
    )
    if not all(map(math.isfinite, found)):
        raise UnsupportedModel(f"{prefix}.{ACTIVATION} has coefficients that aren't finite: {said}")
    return found


def limited(gate_up: Tensor, limit: float) -> Tensor:
    """Bounds the gate from above, and up from both sides. `gate_up`: [rows, 2 * size], the gate
    first."""
    gate, up = gate_up.chunk(2, -1)
    return torch.cat((gate.clamp(max=limit), up.clamp(-limit, limit)), -1)
