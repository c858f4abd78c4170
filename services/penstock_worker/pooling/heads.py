"""Classification heads over the vectors of inputs."""

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
"""[hidden] -> [labels], or [inputs, hidden] -> [inputs, labels]; float32."""


class HeadOps(Protocol):
    """What heads are computed with. float32; an input's numbers never depend on the others."""

    def product(self, weight: Tensor, bias: Tensor | None = None) -> Product:
        """weight: [outputs, inputs].  bias: [outputs]."""

    def activate(self, x: Tensor, kind: str) -> Tensor:
        """tanh or relu."""


@dataclass(frozen=True)
class VectorProduct:
    """Of one vector at a time."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        product = self.weight @ x
        return product if self.bias is None else product + self.bias


class VectorOps:
    """Plain torch, for one vector of an input: a row product each, so batches don't matter."""

    def product(self, weight: Tensor, bias: Tensor | None = None) -> Product:
        return VectorProduct(weight, bias)

    def activate(self, x: Tensor, kind: str) -> Tensor:
        return torch.tanh(x) if kind == "tanh" else torch.relu(x)


VECTORS: HeadOps = VectorOps()


def encoder_head(
    config: EncoderConfig, weights: Weights, labels: int, ops: HeadOps = VECTORS
) -> Head:
    """As transformers has it for the family. Raises UnsupportedModel for missing tensors."""
    size = config.hidden_size
    head = ENCODERS[config.family].head
    first = _dense(weights, head.inner, size, size, ops)
    second = _dense(weights, head.outer, labels, size, ops)
    return lambda vectors: second(ops.activate(first(vectors), head.activation))


def decoder_head(weights: Weights, labels: int, hidden: int, ops: HeadOps = VECTORS) -> Head:
    """One matrix, without a bias."""
    return ops.product(weights.take("score.weight", (labels, hidden), torch.float32))


def _dense(weights: Weights, name: str, outputs: int, inputs: int, ops: HeadOps) -> Product:
    matrix = weights.take(f"{name}.weight", (outputs, inputs), torch.float32)
    return ops.product(matrix, weights.take(f"{name}.bias", (outputs,), torch.float32))
