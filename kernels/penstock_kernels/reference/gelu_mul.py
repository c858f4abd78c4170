"""The gate of a GEGLU feed-forward layer."""

from __future__ import annotations

import math

import torch
from torch import Tensor

GELU_SLOPE = math.sqrt(8.0 / math.pi)
GELU_CUBE = 0.044715
"""gelu(z) = z / (1 + exp(-GELU_SLOPE * (z + GELU_CUBE * z^3))), which is the tanh form: (1 +
tanh(y)) / 2 = 1 / (1 + exp(-2 y))."""


def gelu_mul(gate_up: Tensor) -> Tensor:
    """gelu(gate) * up (Shazeer, 2020, "GEGLU"), with gelu in its tanh form (Hendrycks and Gimpel,
    2016).

    `gate_up` is [rows, 2 * size], the gate in the first half. Computed in float32 and rounded once.
    Returns [rows, size] in the same dtype. Written with exp for the same reason as silu_mul.
    """
    gate, up = gate_up.float().chunk(2, dim=-1)
    bent = gate + GELU_CUBE * (gate * gate * gate)
    return (gate / (1.0 + torch.exp(-GELU_SLOPE * bent)) * up).to(gate_up.dtype)
