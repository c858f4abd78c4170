"""Sampling parameters of a step's rows."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class SamplingRows:
    """The parameters of each row, [rows] tensors on the device; see reference.SamplingCuts."""

    temperature: Tensor
    """float64; 0 takes the most likely token."""
    top_k: Tensor
    """int32."""
    top_p: Tensor
    """float64."""
    min_p: Tensor
    """float64."""
    seed: Tensor
    """int64 (the bit pattern of a uint64), see reference.uniform."""
    sequence: Tensor
    """int64, see reference.uniform."""
    token: Tensor
    """int64, see reference.uniform."""
