"""Activations of feed-forward layers, with a gate and without.

Written with exp and erf, because torch.silu, torch.sigmoid and torch.tanh give an element other
bits in the tail of a vector loop, and torch's gelu where rows don't lie one after another.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

import torch

from penstock_kernels.reference.rms_norm import row_mean

if TYPE_CHECKING:
    from torch import Tensor

SQRT_HALF = math.sqrt(0.5)
GELU_SLOPE = math.sqrt(8.0 / math.pi)
GELU_CUBE = 0.044715
"""gelu(z) = z / (1 + exp(-GELU_SLOPE * (z + GELU_CUBE * z^3))), which is the tanh form: (1 +
tanh(y)) / 2 = 1 / (1 + exp(-2 y))."""


QUICK_SLOPE = 1.702
"""quick_gelu(x) = x * sigmoid(QUICK_SLOPE * x)."""
CLAMPED_SLOPE = 1.702
CLAMP = 7.0
"""Bound of clamped_swiglu: gate * sigmoid(CLAMPED_SLOPE * gate) * (up + 1), after both were
clamped."""


def gated_activation(gate_up: Tensor, kind: str, limit: float | None = None) -> Tensor:
    """activation(gate) * up (Shazeer, 2020). `gate_up` is [rows, 2 * size], the gate in the first
    half. `limit`: what activation(gate) is at most, and up as well, which is at least -limit; None:
    there are no bounds. Computed in float32 and rounded once. Returns [rows, size] in the same
    dtype."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    if kind == "clamped_swiglu":
        return _clamped_swiglu(gate, up).to(gate_up.dtype)
    activated = _activated(gate, kind)
    if limit is not None:
        activated, up = activated.clamp(max=limit), up.clamp(-limit, limit)
    return (activated * up).to(gate_up.dtype)


def _clamped_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """gate * sigmoid(CLAMPED_SLOPE * gate) * (up + 1), as in OpenAI's release of gpt-oss, 2025."""
    gate, up = gate.clamp(max=CLAMP), up.clamp(-CLAMP, CLAMP)
    return gate / (1.0 + torch.exp(-CLAMPED_SLOPE * gate)) * (up + 1.0)


def sparse_gate(gate_up: Tensor, share: float) -> Tensor:
    """Makes about `share` of each row's gate 0, and subtracts the limit from the rest: a normal
    distribution with the row's mean and deviation has that share below it (Gemma 3n, 2025).
    `gate_up` is as in gated_activation. Computed in float32 and rounded once. Returns its shape and
    dtype."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate = gate.float().contiguous()
    mean = row_mean(gate)
    deviation = torch.sqrt(row_mean((gate - mean) * (gate - mean)))
    limit = mean + deviation * NormalDist().inv_cdf(share)
    return torch.cat((torch.relu(gate - limit).to(up.dtype), up), -1)


def silu_mul(gate_up: Tensor) -> Tensor:
    """gated_activation with silu ("SwiGLU")."""
    return gated_activation(gate_up, "silu")


def gelu_mul(gate_up: Tensor) -> Tensor:
    """gated_activation with gelu in its tanh form ("GEGLU")."""
    return gated_activation(gate_up, "gelu_tanh")


def plain_activation(x: Tensor, kind: str) -> Tensor:
    """activation(x). `x` is [rows, size]. Computed in float32 and rounded once."""
    return _activated(x.float(), kind).to(x.dtype)


def _activated(x: Tensor, kind: str) -> Tensor:
    """`kind` is silu, gelu (Hendrycks and Gimpel, 2016), gelu_tanh (its approximation), or relu2
    (So et al., 2021, the square of relu), or quick_gelu (an approximation by a sigmoid: Hendrycks
    and Gimpel, too)."""
    if kind == "silu":
        return x / (1.0 + torch.exp(-x))
    if kind == "gelu_tanh":
        return x / (1.0 + torch.exp(-GELU_SLOPE * (x + GELU_CUBE * (x * x * x))))
    if kind == "gelu":
        return 0.5 * x * (1.0 + torch.erf(x * SQRT_HALF))
    if kind == "quick_gelu":
        return x / (1.0 + torch.exp(-QUICK_SLOPE * x))
    if kind == "relu2":
        kept = torch.relu(x)
        return kept * kept
    raise ValueError(f"the activation {kind!r} is not known")


SERIES_FROM = -0.5
"""Inputs above this have exp(x) - 1 - x computed as a series: near 0 the difference has few digits
left."""
SERIES = tuple(1.0 / math.factorial(power) for power in range(9, 1, -1))


def xielu(x: Tensor, coefficients: tuple[float, float, float, float]) -> Tensor:
    """An activation with learned coefficients (Huang and Schlag, "Deriving activation functions
    using integration", 2024). `x` is [rows, size]. Computed in float32 and rounded once.

    coefficients: what the square of x is multiplied by above 0; what exp(x) - 1 - x is multiplied
    by below it; the factor of x, which is added to either; and the largest number that an
    exponential is taken of.
    """
    above, below, slope, most = coefficients
    wide = x.float()
    least = wide.clamp(max=most)
    near = least.clamp(min=SERIES_FROM)
    series = torch.full_like(near, SERIES[0])
    for coefficient in SERIES[1:]:
        series = series * near + coefficient
    curve = torch.where(
        least > SERIES_FROM, near * near * series, (torch.exp(least) - 1.0) - least
    ) + (least - wide)
    bent = torch.where(wide > 0, wide * wide * above, curve * below)
    return (bent + wide * slope).to(x.dtype)


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """cap * tanh(x / cap) (Gemma 2, 2024). `x` is float32, of any shape.

    Written with exp, tanh(y) = 1 - 2 / (1 + exp(2 y)), because torch.tanh gives an element other
    bits in the tail of a vector loop. exp(2 y) that overflows gives exactly `cap`.
    """
    return cap * (1.0 - 2.0 / (1.0 + torch.exp(x * (2.0 / cap))))
