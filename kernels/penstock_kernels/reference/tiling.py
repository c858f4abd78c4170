"""The one row count that every matrix product and row reduction runs with."""

from __future__ import annotations

import torch
from torch import Tensor

ROW_TILE = 16
"""Rows per tile.  Part of the numbers: another value may give other bits.

Measured with SmolLM2-135M on 2 cores (see linear.py): a lone row pays for the whole tile, many
rows pay for the narrowness of each.  16 is the value at which both are bearable.
"""


def padded_rows(rows: int) -> int:
    """`rows` rounded up to whole tiles."""
    return -(-rows // ROW_TILE) * ROW_TILE


def pad_rows(x: Tensor) -> Tensor:
    """x with zero rows appended up to whole tiles; x itself, if contiguous, where none are due."""
    missing = padded_rows(x.shape[0]) - x.shape[0]
    if not missing:
        return x.contiguous()
    return torch.cat((x, x.new_zeros(missing, *x.shape[1:])))
