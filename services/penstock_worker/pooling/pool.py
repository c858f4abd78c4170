"""Pooling: from the last layer's output to what a request asks for.

Everything here works on the rows of a single input, in fresh memory and in float32. So the shapes,
and with them the bits, depend on that input alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.model.pooling_config import Activation, PoolingConfig, PoolingMode
from penstock.protocol.common import Pooling, Vectors
from penstock_worker.pooling.bodies import PoolInputs
from penstock_worker.pooling.heads import Head

LEAST_NORM = 1e-12
"""Smallest length that a vector is divided by."""


def pooled_by(mode: PoolingMode) -> PoolInputs:
    """Returns what pools the rows of inputs on the host."""

    def pooled(rows: Tensor, lengths: list[int]) -> Tensor:
        parts = rows[: sum(lengths)].split(lengths)
        return torch.stack([_pooled_vector(part.float().clone(), mode) for part in parts])

    return pooled


def scored(vectors: Tensor, head: Head | None) -> Tensor:
    """Applies the head to [inputs, hidden]."""
    if head is None:
        raise ValueError("the model has no classification head")
    return head(vectors)


def finished(values: Tensor, asked: Pooling, config: PoolingConfig) -> Tensor:
    """Applies what the request asks for: truncation and normalisation, or probabilities.

    `values` are an input's scores [labels], its vector [hidden], or its tokens' vectors [tokens,
    hidden].
    """
    if asked.task == "classify":
        wanted = asked.activate is None or asked.activate
        return activated(values, config.activation) if wanted else values
    if asked.dimensions is not None:
        values = values[..., : asked.dimensions].clone()
    if config.normalize if asked.normalize is None else asked.normalize:
        lengths = values.square().sum(-1, keepdim=True).sqrt_()
        values = values / lengths.clamp_(min=LEAST_NORM)
    return values


def _pooled_vector(rows: Tensor, mode: PoolingMode) -> Tensor:
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
    """`scores` is [labels], or [tokens, labels]."""
    match kind:
        case "sigmoid":
            return torch.sigmoid(scores)
        case "softmax":
            return torch.softmax(scores, -1)
        case "identity":
            return scores


def as_vectors(values: Tensor) -> Vectors:
    """Returns the values in wire format: float32, little-endian. Raises ValueError if any isn't
    finite."""
    if not bool(torch.isfinite(values).all()):
        raise ValueError("the model gave numbers that are not finite")
    return Vectors(tuple(values.shape), values.contiguous().numpy().astype("<f4").tobytes())
