"""Recurrent layers, token by token.

Promise: a token's results and the state after it are the same bits however the tokens are divided
into calls. What goes over all tokens at once is element-wise, and made of operations whose result
doesn't depend on an element's place; sums and logarithms are made for one token at a time, so that
their shapes are always the same.

All tensors are float32. States are contiguous, and are changed in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def causal_conv(x: Tensor, last: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolves each channel over time: a token's result is made of it and of those before it.

    `x`: [tokens, channels].
    `last`: [kernel - 1, channels], the inputs before these; becomes those after which the next
    tokens follow.
    `weight`: [kernel, channels], the present token's factor last.
    `bias`: [channels].
    Returns [tokens, channels].
    """
    tokens, inputs = x.shape[0], torch.cat((last, x))
    found = inputs[:tokens] * weight[0]
    for place in range(1, weight.shape[0]):
        found = found + inputs[place : place + tokens] * weight[place]
    last.copy_(inputs[tokens:])
    return found if bias is None else found + bias


def gated_delta(
    query: Tensor, key: Tensor, value: Tensor, strength: Tensor, decay: Tensor, state: Tensor
) -> Tensor:
    """The gated delta rule (Yang et al., "Gated delta networks", 2024): a head's matrix decays, is
    corrected so that the key gives more of the value, and is read by the query.

    `query`, `key`: [tokens, heads, key_dim].  `value`: [tokens, heads, value_dim].
    `strength`: [tokens, heads], of the correction, 0 to 1.
    `decay`: [tokens, heads, 1], factor of the matrix, or [tokens, heads, key_dim], of its rows
    (Kimi Team, "Kimi Linear", 2025).
    `state`: [heads, key_dim, value_dim].
    Returns [tokens, heads, value_dim].
    """
    found = torch.empty_like(value)
    for token in range(value.shape[0]):
        by_key = key[token, :, :, None]
        state.mul_(decay[token, :, :, None])
        missing = (value[token] - (state * by_key).sum(1)) * strength[token, :, None]
        state.add_(by_key * missing[:, None])
        found[token] = (state * query[token, :, :, None]).sum(1)
    return found


def mamba2(
    x: Tensor,
    into: Tensor,
    out_of: Tensor,
    time_step: Tensor,
    rate: Tensor,
    skip: Tensor,
    state: Tensor,
) -> Tensor:
    """The scan of Mamba 2 (Dao and Gu, "Transformers are SSMs", 2024).

    `x`: [tokens, heads, head_dim].
    `into`, `out_of`: [tokens, heads, state], the maps into and out of the state (B and C).
    `time_step`: [tokens, heads].
    `rate`: [heads], the negative rate of decay (A).
    `skip`: [heads], factor with which the input is added to the result (D).
    `state`: [heads, head_dim, state].
    Returns [tokens, heads, head_dim].
    """
    found = torch.empty_like(x)
    decay = torch.exp(time_step * rate)
    for token in range(x.shape[0]):
        taken = x[token] * time_step[token, :, None]
        state.mul_(decay[token, :, None, None])
        state.add_(taken[:, :, None] * into[token, :, None])
        found[token] = (state * out_of[token, :, None]).sum(-1)
    return found + x * skip[:, None]


def mamba1(
    x: Tensor,
    into: Tensor,
    out_of: Tensor,
    time_step: Tensor,
    rate: Tensor,
    skip: Tensor,
    state: Tensor,
) -> Tensor:
    """The scan of Mamba 1 (Gu and Dao, "Mamba: linear-time sequence modeling with selective state
    spaces", 2023).

    `x`: [tokens, channels].
    `into`, `out_of`: [tokens, state], the maps into and out of the state (B and C).
    `time_step`: [tokens, channels].
    `rate`: [channels, state], the negative rates of decay (A).
    `skip`: [channels], factor with which the input is added to the result (D).
    `state`: [channels, state].
    Returns [tokens, channels].
    """
    found = torch.empty_like(x)
    for token in range(x.shape[0]):
        step = time_step[token, :, None]
        state.mul_(torch.exp(step * rate))
        state.add_(x[token, :, None] * step * into[token])
        found[token] = (state * out_of[token]).sum(-1)
    return found + x * skip


def softplus(x: Tensor) -> Tensor:
    """ln(1 + exp(x)). `x` is [tokens, size]. Token by token: a logarithm's bits may depend on an
    element's place in a vector, unlike those of torch.exp."""
    rest = torch.exp(-x.abs())
    return x.clamp(min=0.0) + torch.stack([torch.log1p(row) for row in rest])


def sigmoid(x: Tensor) -> Tensor:
    """Written with exp, as the activations are."""
    return 1.0 / (1.0 + torch.exp(-x))


def silu(x: Tensor) -> Tensor:
    return x / (1.0 + torch.exp(-x))
