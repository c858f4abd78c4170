"""Rotary position embedding (Su et al., 2021), in the half-split layout of GPT-NeoX."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def inverse_frequencies(head_dim: int, theta: float) -> Tensor:
    """theta^(-2i / head_dim) for i < head_dim / 2. float32, [head_dim / 2]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return 1.0 / (theta**exponents)


def linear_scaled(frequencies: Tensor, factor: float) -> Tensor:
    """All frequencies divided by factor (Chen et al., 2023, position interpolation)."""
    return frequencies / factor


def llama3_scaled(
    frequencies: Tensor,
    *,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position: int,
) -> Tensor:
    """The banded scaling of the Llama 3.1 release.

    A frequency whose wavelength exceeds original/low is divided by factor; below original/high it
    stays; in between the two are blended linearly in original/wavelength. Where both bounds are one
    (Llama 4), nothing is in between.
    """
    turns = original_max_position * frequencies / (2 * math.pi)
    if low_freq_factor == high_freq_factor:
        return torch.where(turns < low_freq_factor, frequencies / factor, frequencies)
    blend = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
    blended = (1 - blend) * frequencies / factor + blend * frequencies
    scaled = torch.where(turns < low_freq_factor, frequencies / factor, blended)
    return torch.where(turns > high_freq_factor, frequencies, scaled)


def yarn_scaled(
    frequencies: Tensor,
    *,
    theta: float,
    factor: float,
    beta_fast: float,
    beta_slow: float,
    original_max_position: int,
    truncate: bool,
) -> Tensor:
    """NTK-by-parts interpolation (Peng et al., "YaRN", 2023).

    A frequency that turns more than beta_fast times within the original context stays; one that
    turns less than beta_slow times is divided by factor; between these two dimensions the two are
    blended linearly. `truncate`: their bounds are rounded to whole dimensions, outwards.
    """
    dims = 2 * len(frequencies)

    def dimension(turns: float) -> float:
        ratio = original_max_position / (turns * 2 * math.pi)
        return dims * math.log(ratio) / (2 * math.log(theta))

    low, high = dimension(beta_fast), dimension(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    if low == high:
        high += 0.001
    blend = ((torch.arange(dims // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return frequencies / factor * blend + frequencies * (1 - blend)


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
