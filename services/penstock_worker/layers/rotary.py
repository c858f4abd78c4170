"""The rotary frequencies of a model, and the tables of its angles."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.model_config import ModelConfig
from penstock_kernels import reference as ops
from penstock_worker.attention.interface import Rotation
from penstock_worker.weights.names import ROPE_FACTORS
from penstock_worker.weights.weights import Weights


class Rotary:
    """Cosines and sines, each [positions, head_dim / 2] float32, for every position that may occur.
    They are computed on the CPU, so that all devices have the same values."""

    def __init__(
        self, frequencies: Tensor, positions: int, device: torch.device | None = None
    ) -> None:
        self.cos, self.sin = (each.to(device) for each in ops.rope_table(frequencies, positions))

    def at(self, positions: Tensor) -> Rotation:
        """Returns the rotation for the rows of a step. `positions` is [rows] int64."""
        return Rotation(self.cos, self.sin, positions)

    @staticmethod
    def load(config: ModelConfig, weights: Weights, positions: int) -> Rotary:
        return Rotary(_frequencies(config, weights), positions, weights.device)


def _frequencies(config: ModelConfig, weights: Weights) -> Tensor:
    plain = ops.inverse_frequencies(config.head_dim, config.rope_theta)
    scaling = config.rope_scaling
    if scaling is None:
        return plain
    match scaling.kind:
        case "linear":
            return ops.linear_scaled(plain, scaling.factor)
        case "llama3":
            return ops.llama3_scaled(
                plain,
                factor=scaling.factor,
                low_freq_factor=scaling.low_freq_factor,
                high_freq_factor=scaling.high_freq_factor,
                original_max_position=scaling.original_max_position,
            )
        case "precomputed":
            return plain / weights.take(ROPE_FACTORS, (config.head_dim // 2,), torch.float32).cpu()
