"""The feed-forward block, gated (Shazeer, 2020) or not."""

from __future__ import annotations

from torch import Tensor

from penstock.model.layer_spec import FeedForwardSpec
from penstock_worker.layers.ops import Ops
from penstock_worker.layers.parts import Parts
from penstock_worker.quantisation.interface import Product


class FeedForward:
    """Maps [rows, hidden] to [rows, hidden]."""

    def __init__(self, ops: Ops, spec: FeedForwardSpec, up: Product, down: Product) -> None:
        """`up` gives [rows, 2 * inner], the gate first, or without a gate [rows, inner]."""
        self._ops = ops
        self._spec = spec
        self.up = up
        self.down = down

    def __call__(self, hidden: Tensor) -> Tensor:
        spec, inner = self._spec, self.up(hidden)
        if spec.sparsity:
            inner = self._ops.sparse_gate(inner, spec.sparsity)
        return self.down(self._ops.activate(inner, spec.activation, gated=spec.gated))

    @staticmethod
    def sized(
        parts: Parts, spec: FeedForwardSpec, prefix: str, inner: int, *, summed: bool = True
    ) -> FeedForward:
        """Loads the network whose tensors' names begin with `prefix`. Not `summed`, its results are
        this rank's part of a sum over ranks."""
        hidden = parts.config.hidden_size
        names = ["gate_proj", "up_proj"] if spec.gated else ["up_proj"]
        up = parts.product([(f"{prefix}.{name}", inner) for name in names], hidden, bias=spec.bias)
        product = parts.summed if summed else parts.summand
        down = product(f"{prefix}.down_proj", hidden, inner, bias=spec.bias)
        return FeedForward(parts.ops, spec, up, down)

    @staticmethod
    def load(parts: Parts, layer: int) -> FeedForward:
        config = parts.config
        spec, prefix = config.layer(layer).feed_forward, f"layers.{layer}.mlp"
        return FeedForward.sized(parts, spec, prefix, config.inner(layer))
