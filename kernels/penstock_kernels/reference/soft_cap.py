"""A bound on logits or attention scores that leaves small ones as they are."""

from __future__ import annotations

import torch
from torch import Tensor


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """cap * tanh(x / cap) (Gemma 2, 2024). `x` is float32, of any shape.

    Written with exp, tanh(y) = 1 - 2 / (1 + exp(2 y)), because torch.tanh gives an element other
    bits in the tail of a vector loop. exp(2 y) that overflows gives exactly `cap`.
    """
    return cap * (1.0 - 2.0 / (1.0 + torch.exp(x * (2.0 / cap))))
