"""Rotary position embedding (Su et al., 2021), in the half-split layout of GPT-NeoX."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def inverse_frequencies(head_dim: int, theta: float) -> Tensor:
    """theta^(-2i / head_dim) for i < head_dim / 2. float32, [head_dim / 2]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return 1.0 / (theta**exponents)


def rope_table(frequencies: Tensor, positions: int) -> tuple[Tensor, Tensor]:
    """cos and sin of position * frequency, each [positions, head_dim / 2], float32."""
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies[None, :]
    return torch.cos(angles), torch.sin(angles)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the pairs (x[i], x[i + dims / 2]); what lies after the first `dims` numbers of a
    head stays.

    `x` is [rows, heads, head_dim]. `cos` and `sin` are [rows, dims / 2], float32, for each row's
    position. Computed in float32 and rounded once. Returns x's shape and dtype.
    """
    dims = 2 * cos.shape[-1]
    if dims < x.shape[-1]:
        return torch.cat((apply_rope(x[..., :dims], cos, sin), x[..., dims:]), -1)
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


def apply_rope_last(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the last `dims` numbers of a head, of which neighbours are a pair. Arguments and
    result are apply_rope's; with `sin` negated, it turns back."""
    plain, turning = x.split((x.shape[-1] - 2 * cos.shape[-1], 2 * cos.shape[-1]), -1)
    first, second = turning.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    turned = torch.stack((first * cos - second * sin, second * cos + first * sin), -1)
    return torch.cat((plain, turned.flatten(-2).to(x.dtype)), -1)
