"""The gate of a SwiGLU feed-forward layer."""

from __future__ import annotations

import torch
from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, where silu(z) = z / (1 + exp(-z)) (Shazeer, 2020, "SwiGLU").

    `gate_up` is [rows, 2 * size], the gate in the first half. Computed in float32 and rounded once.
    Returns [rows, size] in the same dtype.

    Written with exp, because torch.silu and torch.sigmoid give an element other bits in the tail of
    a vector loop.
    """
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (gate / (1.0 + torch.exp(-gate)) * up).to(gate_up.dtype)
