"""The gated feed-forward block (SwiGLU: Shazeer, 2020)."""

from __future__ import annotations

from torch import Tensor

from penstock_worker.layers.ops import Ops
from penstock_worker.layers.parts import Parts
from penstock_worker.quantisation.interface import Product


class FeedForward:
    """Maps [rows, hidden] to [rows, hidden]."""

    def __init__(self, ops: Ops, gate_up: Product, down: Product) -> None:
        self._ops = ops
        self.gate_up = gate_up
        self.down = down

    def __call__(self, hidden: Tensor) -> Tensor:
        return self.down(self._ops.silu_mul(self.gate_up(hidden)))

    @staticmethod
    def load(parts: Parts, layer: int) -> FeedForward:
        config = parts.config
        prefix, inner, bias = f"layers.{layer}.mlp", config.intermediate_size, config.mlp_bias
        gate_up = parts.product(
            [(f"{prefix}.gate_proj", inner), (f"{prefix}.up_proj", inner)],
            config.hidden_size,
            bias=bias,
        )
        down = parts.summed(f"{prefix}.down_proj", config.hidden_size, inner, bias=bias)
        return FeedForward(parts.ops, gate_up, down)
