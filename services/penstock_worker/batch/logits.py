"""Rows of logits, in arrays of the backend that computes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor

Logits: TypeAlias = Any
"""[rows, vocab] float32: numpy's array where the CPU kernels compute, which need no torch; else
torch's tensor. Both are cut and indexed alike, and neither is modified."""


def in_numpy(logits: Logits) -> np.ndarray:
    """Returns logits that are in this process's memory, without a copy."""
    return logits if isinstance(logits, np.ndarray) else logits.numpy()


def in_torch(logits: Logits) -> Tensor:
    """Returns them as a tensor, without a copy."""
    return torch.from_numpy(logits) if isinstance(logits, np.ndarray) else logits


def first_columns(logits: Logits, count: int) -> Logits:
    """Returns a copy of the first ids' logits, [rows, count], a row after another."""
    columns = logits[:, :count]
    return columns.copy() if isinstance(columns, np.ndarray) else columns.contiguous()
