"""4-bit levels that stand for the entries of a table instead of whole numbers in order. The entries
are int8, so that levels become signed bytes without rounding."""

from __future__ import annotations

import torch
from torch import Tensor

IQ4 = torch.tensor(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=torch.int8
)
"""The table of IQ4_NL and IQ4_XS (`kvalues_iq4nl` in ggml-common.h)."""
E2M1 = torch.tensor([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=torch.int8)
"""Twice the 4-bit floating-point numbers of the OCP microscaling formats, version 1.0: the highest
bit is the sign, then come two bits of exponent and one of mantissa."""


def looked_up(levels: Tensor, table: Tensor) -> Tensor:
    """Maps uint8 levels from 0 to 15 to the table's entries, int8 of the same shape."""
    return table[levels.int()]
