"""What the rows of a step ask of the sampler."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class SamplingRows:
    """What each row asks for, [rows] tensors on the device; see reference.SamplingCuts."""

    temperature: Tensor
    """float64; 0 takes the most likely token."""
    top_k: Tensor
    """int32."""
    top_p: Tensor
    """float64."""
    min_p: Tensor
    """float64."""
    seed: Tensor
    """int64 (by its bits), see reference.uniform."""
    sequence: Tensor
    """int64, see reference.uniform."""
    token: Tensor
    """int64, see reference.uniform."""
