"""Activations of feed-forward layers, with a gate and without."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from penstock_kernels.reference.gelu_mul import GELU_CUBE, GELU_SLOPE


def gated_activation(gate_up: Tensor, kind: str) -> Tensor:
    """activation(gate) * up (Shazeer, 2020). `gate_up` is [rows, 2 * size], the gate in the first
    half. Computed in float32 and rounded once. Returns [rows, size] in the same dtype."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (_activated(gate, kind) * up).to(gate_up.dtype)


def plain_activation(x: Tensor, kind: str) -> Tensor:
    """activation(x). `x` is [rows, size]. Computed in float32 and rounded once."""
    return _activated(x.float(), kind).to(x.dtype)


def _activated(x: Tensor, kind: str) -> Tensor:
    """`kind` is silu, gelu (Hendrycks and Gimpel, 2016), gelu_tanh (its approximation), or relu2
    (So et al., 2021, the square of relu). Written with exp where torch's own functions give an
    element other bits in the tail of a vector loop."""
    if kind == "silu":
        return x / (1.0 + torch.exp(-x))
    if kind == "gelu_tanh":
        return x / (1.0 + torch.exp(-GELU_SLOPE * (x + GELU_CUBE * (x * x * x))))
    if kind == "gelu":
        return functional.gelu(x)
    if kind == "relu2":
        kept = torch.relu(x)
        return kept * kept
    raise ValueError(f"the activation {kind!r} is not known")
