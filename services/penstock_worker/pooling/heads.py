"""Classification heads on the vectors of inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from penstock.families import ENCODERS
from penstock.model_config import EncoderConfig
from penstock_worker.quantisation.interface import Product
from penstock_worker.weights.weights import Weights

Head = Callable[[Tensor], Tensor]
"""Maps [hidden] to [labels], or [inputs, hidden] to [inputs, labels]; float32."""


class HeadOps(Protocol):
    """The operations of heads, in float32. An input's result never depends on the others."""

    def product(self, weight: Tensor, bias: Tensor | None = None) -> Product:
        """`weight` is [outputs, inputs], `bias` [outputs]."""

    def activate(self, x: Tensor, kind: str) -> Tensor:
        """`kind` is tanh or relu."""


@dataclass(frozen=True)
class VectorProduct:
    """A product with one vector at a time."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        product = self.weight @ x
        return product if self.bias is None else product + self.bias


class VectorOps:
    """Plain torch, for the vector of one input at a time, so that the result doesn't depend on the
    batch."""

    def product(self, weight: Tensor, bias: Tensor | None = None) -> Product:
        return VectorProduct(weight, bias)

    def activate(self, x: Tensor, kind: str) -> Tensor:
        return torch.tanh(x) if kind == "tanh" else torch.relu(x)


VECTORS: HeadOps = VectorOps()


def encoder_head(
    config: EncoderConfig, weights: Weights, labels: int, ops: HeadOps = VECTORS
) -> Head:
    """Returns the family's head as transformers has it. Raises UnsupportedModel for missing
    tensors."""
    size = config.hidden_size
    head = ENCODERS[config.family].head
    first = _dense(weights, head.inner, size, size, ops)
    second = _dense(weights, head.outer, labels, size, ops)
    return lambda vectors: second(ops.activate(first(vectors), head.activation))


def decoder_head(weights: Weights, labels: int, hidden: int, ops: HeadOps = VECTORS) -> Head:
    """Returns a head of one matrix without a bias."""
    return ops.product(weights.take("score.weight", (labels, hidden), torch.float32))


def _dense(weights: Weights, name: str, outputs: int, inputs: int, ops: HeadOps) -> Product:
    matrix = weights.take(f"{name}.weight", (outputs, inputs), torch.float32)
    return ops.product(matrix, weights.take(f"{name}.bias", (outputs,), torch.float32))
