"""One or two products of each of a tower's vectors, or of several of them one after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.model.sound_projector_spec import (
    LinearProjector,
    NarrowProjector,
    NormedProjector,
    StackProjector,
    TwofoldProjector,
)
from penstock_kernels import reference
from penstock_worker.media.sound_projector import SoundProjector
from penstock_worker.vision.layer import TowerProduct
from penstock_worker.vision.two_products import TwoProducts
from penstock_worker.weights.weights import Weights


class AsTheyAre(SoundProjector, of=type(None)):
    def __init__(self, spec: None, weights: Weights, inputs: int, outputs: int, at: str) -> None:
        """There are no weights."""

    def __call__(self, vectors: Tensor) -> Tensor:
        return vectors


class Linear(SoundProjector, of=LinearProjector):
    def __init__(
        self, spec: LinearProjector, weights: Weights, inputs: int, outputs: int, at: str
    ) -> None:
        self._product = TowerProduct.load(weights, [(at, outputs)], inputs)

    def __call__(self, vectors: Tensor) -> Tensor:
        return self._product(vectors)


class Narrow(SoundProjector, of=NarrowProjector):
    def __init__(
        self, spec: NarrowProjector, weights: Weights, inputs: int, outputs: int, at: str
    ) -> None:
        self._products = TwoProducts(
            weights, inputs, outputs, at=at, inner=inputs, activation=spec.activation
        )

    def __call__(self, vectors: Tensor) -> Tensor:
        return self._products(vectors)


class Twofold(SoundProjector, of=TwofoldProjector):
    def __init__(
        self, spec: TwofoldProjector, weights: Weights, inputs: int, outputs: int, at: str
    ) -> None:
        self._products = TwoProducts(weights, inputs, outputs, at=at)

    def __call__(self, vectors: Tensor) -> Tensor:
        return self._products(vectors)


class Stack(SoundProjector, of=StackProjector):
    def __init__(
        self, spec: StackProjector, weights: Weights, inputs: int, outputs: int, at: str
    ) -> None:
        self._wide = inputs * spec.factor
        self._products = TwoProducts(
            weights, self._wide, outputs, at=at, activation=spec.activation, bias=False
        )

    def __call__(self, vectors: Tensor) -> Tensor:
        return self._products(vectors.reshape(-1, self._wide))


class NormedRows(SoundProjector, of=NormedProjector):
    def __init__(
        self, spec: NormedProjector, weights: Weights, inputs: int, outputs: int, at: str
    ) -> None:
        self._product = TowerProduct.load(weights, [(at, outputs)], inputs, bias=False)
        self._ones = torch.ones(inputs, dtype=weights.dtype, device=weights.device)
        self._eps = spec.eps
        self.size = self._product.size

    def __call__(self, vectors: Tensor) -> Tensor:
        return self._product(reference.rms_norm(vectors, self._ones, self._eps))
