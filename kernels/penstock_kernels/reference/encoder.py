"""Operations of bidirectional encoders over a ragged batch.

Promise: the rows of an input have the same bits alone and in any batch. Products and element-wise
operations run on tiles of ENCODER_TILE rows (see `linear`). The element-wise ones used here give
the same bits in the tail of a vector loop, which is wherever a thread's share ends. Attention
computes one input at a time, so the shapes of its products depend on that input alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from penstock_kernels.reference.activations import GELU_CUBE, GELU_SLOPE
from penstock_kernels.reference.linear import LANES, _whole_lanes

if TYPE_CHECKING:
    from torch import Tensor

ENCODER_TILE = 36
"""Rows per tile. Results depend on it. MKL on AVX2 processes 6 rows at a time; it sums in another
order for two that are left over, and for the last two of 30 if rows are long. An encoder's products
have many rows. 384 by 1536 with 2,048 rows, in milliseconds on one thread with AVX-512: 31.3 with
16 rows per tile, 26.0 with 24, 22.8 with 36, 20.5 with 64; a single input of 10 tokens pays for the
whole tile (0.24, 0.30, 0.40, 0.64)."""


def pad_tiles(x: Tensor) -> Tensor:
    """Returns x with zero rows appended up to whole tiles."""
    missing = -x.shape[0] % ENCODER_TILE
    return torch.cat((x, x.new_zeros(missing, *x.shape[1:]))) if missing else x.contiguous()


def tiled_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x @ weight.T + bias.

    `x` is [rows, inputs], whole tiles. `weight` is [outputs, inputs], whose outputs are a multiple
    of the lanes (see `lane_padded`). Returns [rows, outputs].
    """
    out = x.new_empty(x.shape[0], weight.shape[0])
    turned = weight.t()
    aligned = x.shape[1] % LANES == 0
    for row in range(0, x.shape[0], ENCODER_TILE):
        tile = x[row : row + ENCODER_TILE]
        torch.mm(tile if aligned else tile.clone(), turned, out=out[row : row + ENCODER_TILE])
    return out.add_(bias)


def lane_padded(weight: Tensor) -> Tensor:
    """Returns `weight` with zero rows appended up to a multiple of the lanes."""
    return _whole_lanes(weight)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last dimension (Ba et al., 2016).
    Each row independently; computed in float32 and rounded once. `weight` and `bias` may have a
    wider dtype than x."""
    if weight.dtype == x.dtype:
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)
    wide = None if bias is None else bias.to(weight.dtype)
    return torch.nn.functional.layer_norm(x.to(weight.dtype), x.shape[-1:], weight, wide, eps).to(
        x.dtype
    )


def activate(x: Tensor, kind: str) -> Tensor:
    """gelu (Hendrycks and Gimpel, 2016), its tanh form, silu, or relu.

    The tanh form and silu are computed with exp (see `gelu_mul`), because torch's own give other
    bits in the tail of a vector loop.
    """
    if kind == "relu":
        return torch.relu(x)
    if kind == "silu":
        return x / x.neg().exp_().add_(1.0)
    if kind != "gelu_tanh":
        return torch.nn.functional.gelu(x)
    bent = (x * x).mul_(x).mul_(GELU_CUBE).add_(x)
    return x / bent.mul_(-GELU_SLOPE).exp_().add_(1.0)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: list[int],
    bias: Tensor | None = None,
    seen: list[int] | None = None,
) -> Tensor:
    """softmax(q k^T / sqrt(head_dim) + bias) v, bidirectional, within each input.

    `query`, `key`, `value`: [rows, heads, head_dim], one input after another; rows beyond the sum
    of lengths are padding.
    `bias`: [heads, longest, longest], added for every input; or None.
    `seen`: of each input, how many keys its rows see, the first ones; None for all.

    Returns [rows, heads, head_dim]; padding rows are zero.
    """
    out = query.new_zeros(query.shape)
    scale = 1.0 / math.sqrt(query.shape[-1])
    start = 0
    for length, keys in zip(lengths, seen or lengths, strict=True):
        rows, visible = slice(start, start + length), slice(start, start + keys)
        mixed = torch.nn.functional.scaled_dot_product_attention(
            _by_head(query, rows),
            _by_head(key, visible),
            _by_head(value, visible),
            attn_mask=None if bias is None else bias[None, :, :length, :keys].contiguous(),
            scale=scale,
        )
        out[rows] = mixed[0].transpose(0, 1)
        start += length
    return out


def _by_head(x: Tensor, rows: slice) -> Tensor:
    """Returns [1, heads, length, head_dim] in newly allocated memory, because the alignment may
    affect BLAS's order of summation."""
    return x[rows].transpose(0, 1).contiguous()[None]
