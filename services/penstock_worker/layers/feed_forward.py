"""The gated feed-forward block (SwiGLU: Shazeer, 2020)."""

from __future__ import annotations

from torch import Tensor

from penstock.model_config import ModelConfig
from penstock_kernels import reference as ops
from penstock_worker.layers.linear import Linear
from penstock_worker.weights import Weights


class FeedForward:
    """hidden: [rows, hidden] -> [rows, hidden]."""

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self.gate_up = gate_up
        self.down = down

    def __call__(self, hidden: Tensor) -> Tensor:
        return self.down(ops.silu_mul(self.gate_up(hidden)))

    @staticmethod
    def load(config: ModelConfig, weights: Weights, layer: int) -> FeedForward:
        prefix, inner = f"layers.{layer}.mlp", config.intermediate_size
        gate_up = Linear.load(
            weights,
            [(f"{prefix}.gate_proj", inner), (f"{prefix}.up_proj", inner)],
            config.hidden_size,
            bias=config.mlp_bias,
        )
        down = Linear.load(
            weights, [(f"{prefix}.down_proj", config.hidden_size)], inner, bias=config.mlp_bias
        )
        return FeedForward(gate_up, down)
