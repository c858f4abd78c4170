"""What the rows of a step ask of the sampler."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class SamplingRows:
    """What each row asks for, [rows] tensors on the device; see reference.SamplingCuts.

    temperature, top_p, min_p: float64; a temperature of 0 takes the likeliest token.
    top_k: int32.  seed (by its bits), sequence, token: int64, see reference.uniform.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    sequence: Tensor
    token: Tensor
