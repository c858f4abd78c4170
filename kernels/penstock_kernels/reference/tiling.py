"""The one row count with which all matrix products and row reductions run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

ROW_TILE = 16
"""Rows per tile. Results depend on it: another value may give other bits.

Measured with SmolLM2-135M on 2 cores (see linear.py): a single row pays for the whole tile, while
for many rows narrow tiles cost time. 16 is a compromise between the two.
"""


def padded_rows(rows: int) -> int:
    """Returns `rows` rounded up to whole tiles."""
    return -(-rows // ROW_TILE) * ROW_TILE


def pad_rows(x: Tensor) -> Tensor:
    """Returns x with zero rows appended up to whole tiles; x itself if there are none to append and
    it is contiguous."""
    missing = padded_rows(x.shape[0]) - x.shape[0]
    if not missing:
        return x.contiguous()
    return torch.cat((x, x.new_zeros(missing, *x.shape[1:])))
