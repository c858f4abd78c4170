"""The rotary frequencies of a model, and the tables of its angles."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.model.rope_spec import RopeSpec
from penstock_kernels import reference as ops
from penstock_worker.attention.interface import Rotation, SectionedRotation
from penstock_worker.weights.names import ROPE_FACTORS
from penstock_worker.weights.weights import Weights


class Rotary:
    """Cosines and sines, each [positions, dims / 2] float32, for every position that may occur.
    They are computed on the CPU, so that all devices have the same values."""

    def __init__(
        self,
        frequencies: Tensor,
        positions: int,
        device: torch.device | None = None,
        factor: float = 1.0,
        query_factors: Tensor | None = None,
        axes: tuple[int, ...] = (),
    ) -> None:
        """`factor` is that of cosines and sines, `query_factors` as in Rotation, `axes` as in
        RopeSpec."""
        self._axes = torch.tensor(axes, dtype=torch.int64, device=device)
        self.query_factors = None if query_factors is None else query_factors.to(device)
        tables = ops.rope_table(frequencies, positions)
        self.cos, self.sin = (
            (each if factor == 1.0 else each * factor).to(device) for each in tables
        )

    def at(self, positions: Tensor, by_time: Tensor | None = None) -> Rotation:
        """Returns the rotation for the rows of a step. `positions` is [rows] int64; `by_time` is
        [3, rows] int64, which matters where pairs turn by time, row and column."""
        if by_time is not None and len(self._axes):
            return SectionedRotation(
                self.cos, self.sin, positions, by_time=by_time, axes=self._axes
            )
        return Rotation(self.cos, self.sin, positions, self.query_factors)

    @staticmethod
    def load(spec: RopeSpec, weights: Weights, positions: int) -> Rotary:
        factor = 1.0 if spec.scaling is None else spec.scaling.attention_factor
        return Rotary(
            _frequencies(spec, weights, positions),
            positions,
            weights.device,
            factor,
            _query_factors(spec, positions),
            spec.axes,
        )


def _query_factors(spec: RopeSpec, positions: int) -> Tensor | None:
    """A table, as torch's logarithm gives a number other bits in the tail of a vector loop."""
    if not spec.query_growth:
        return None
    times = torch.arange(positions) + spec.query_growth_first
    times = times.to(torch.float32) // spec.query_growth_length
    return 1.0 + spec.query_growth * torch.log(1.0 + times)


def _frequencies(spec: RopeSpec, weights: Weights, positions: int) -> Tensor:
    plain = ops.inverse_frequencies(spec.dims, spec.theta)
    scaling = spec.scaling
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
        case "yarn":
            return ops.yarn_scaled(
                plain,
                theta=spec.theta,
                factor=scaling.factor,
                beta_fast=scaling.beta_fast,
                beta_slow=scaling.beta_slow,
                original_max_position=scaling.original_max_position,
                truncate=scaling.truncate,
            )
        case "longrope":
            # By the longest that a request may get, not by a request's length: a longer request's
            # first tokens would otherwise differ from a shorter one's.
            beyond = positions > scaling.original_max_position
            factors = scaling.long_factors if beyond else scaling.short_factors
            return plain / torch.tensor(factors, dtype=torch.float32)
        case "proportional":
            kept = torch.arange(spec.dims // 2) < scaling.kept
            return torch.where(kept, plain / scaling.factor, 0.0)
        case "precomputed":
            count = spec.dims // 2
            divisors = weights.take(ROPE_FACTORS, (scaling.kept or count,), torch.float32).cpu()
            return plain / divisors[:count]
