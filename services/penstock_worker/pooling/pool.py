"""From the last layer's output to what a request asked for.

Everything here works on one input's rows in fresh memory and in float32: its shape, and so its
bits, depend on that input alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.model_config import Activation, PoolingConfig, PoolingMode
from penstock.protocol.common import Pooling, Vectors
from penstock_worker.pooling.heads import Head

LEAST_NORM = 1e-12
"""A vector is divided by no less."""


def pooled(rows: Tensor, asked: Pooling, config: PoolingConfig, head: Head | None) -> Tensor:
    """rows: [tokens, hidden] of one input; only the last one is needed where `mode` is last.
    Returns [size], [labels] or [tokens, size], float32."""
    wide = rows.float().clone()
    if asked.task == "token_embed":
        return finished(wide, asked, config)
    vector = _one(wide, config.mode)
    return finished(scored(vector, head) if asked.task == "classify" else vector, asked, config)


def scored(vectors: Tensor, head: Head | None) -> Tensor:
    """What a head makes of [hidden], or of [inputs, hidden]."""
    if head is None:
        raise ValueError("the model has no classification head")
    return head(vectors)


def finished(values: Tensor, asked: Pooling, config: PoolingConfig) -> Tensor:
    """values: an input's scores [labels], its vector [hidden] or its tokens' [tokens, hidden]. What
    the request wants of them, cut, normalised or as probabilities."""
    if asked.task == "classify":
        wanted = asked.activate is None or asked.activate
        return activated(values, config.activation) if wanted else values
    if asked.dimensions is not None:
        values = values[..., : asked.dimensions].clone()
    if config.normalize if asked.normalize is None else asked.normalize:
        lengths = values.square().sum(-1, keepdim=True).sqrt_()
        values = values / lengths.clamp_(min=LEAST_NORM)
    return values


def _one(rows: Tensor, mode: PoolingMode) -> Tensor:
    match mode:
        case "mean":
            return rows.sum(0) / rows.shape[0]
        case "max":
            return rows.amax(0)
        case "cls":
            return rows[0]
        case "last":
            return rows[-1]


def activated(scores: Tensor, kind: Activation) -> Tensor:
    """scores: [labels]."""
    match kind:
        case "sigmoid":
            return torch.sigmoid(scores)
        case "softmax":
            return torch.softmax(scores, 0)
        case "identity":
            return scores


def as_vectors(values: Tensor) -> Vectors:
    """For the wire: float32, little-endian. Raises ValueError for numbers that aren't finite."""
    if not bool(torch.isfinite(values).all()):
        raise ValueError("the model gave numbers that are not finite")
    return Vectors(tuple(values.shape), values.contiguous().numpy().astype("<f4").tobytes())
