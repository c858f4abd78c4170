"""From a tower's vectors of a sound to rows of the decoder's size."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from penstock.model.audio_spec import AudioSpec, ConformerSpec
from penstock.model.sound_projector_spec import (
    EmbedderProjector,
    LinearProjector,
    NarrowProjector,
    NormedProjector,
    QueryProjector,
    StackProjector,
    TwofoldProjector,
)
from penstock_kernels import reference
from penstock_worker.media.block_conformer import WindowQueries
from penstock_worker.media.embedder import Embedder
from penstock_worker.vision.layer import TowerProduct
from penstock_worker.weights.weights import Weights


class SoundProjector(ABC):
    """Maps a tower's output, [vectors, its hidden size], to [rows, the decoder's]."""

    @abstractmethod
    def __call__(self, vectors: Tensor) -> Tensor: ...


class _AsTheyAre(SoundProjector):
    def __call__(self, vectors: Tensor) -> Tensor:
        return vectors


class _Linear(SoundProjector):
    def __init__(self, weights: Weights, inputs: int, outputs: int) -> None:
        self._product = TowerProduct.load(weights, [("projector", outputs)], inputs)

    def __call__(self, vectors: Tensor) -> Tensor:
        return self._product(vectors)


class _Narrow(SoundProjector):
    def __init__(self, spec: NarrowProjector, weights: Weights, inputs: int, outputs: int) -> None:
        self._activation = spec.activation
        self._first = TowerProduct.load(weights, [("projector.1", inputs)], inputs)
        self._second = TowerProduct.load(weights, [("projector.2", outputs)], inputs)

    def __call__(self, vectors: Tensor) -> Tensor:
        inner = reference.plain_activation(self._first(vectors), self._activation)
        return self._second(inner)


class _Twofold(SoundProjector):
    def __init__(self, weights: Weights, at: str, inputs: int, outputs: int) -> None:
        self._first = TowerProduct.load(weights, [(f"{at}.1", outputs)], inputs)
        self._second = TowerProduct.load(weights, [(f"{at}.2", outputs)], outputs)

    def __call__(self, vectors: Tensor) -> Tensor:
        return self._second(reference.plain_activation(self._first(vectors), "gelu"))


class NormedRows(SoundProjector):
    """NormedProjector's, which treats each row by itself."""

    def __init__(self, spec: NormedProjector, weights: Weights, inputs: int, outputs: int) -> None:
        self._product = TowerProduct.load(weights, [("projector", outputs)], inputs, bias=False)
        self._ones = torch.ones(inputs, dtype=weights.dtype, device=weights.device)
        self._eps = spec.eps

    @property
    def size(self) -> int:
        """Multiplications for each row."""
        return self._product.size

    def __call__(self, vectors: Tensor) -> Tensor:
        return self._product(reference.rms_norm(vectors, self._ones, self._eps))


class _Stack(SoundProjector):
    def __init__(self, spec: StackProjector, weights: Weights, inputs: int, outputs: int) -> None:
        wide = inputs * spec.factor
        self._wide = wide
        self._activation = spec.activation
        self._first = TowerProduct.load(weights, [("projector.1", outputs)], wide, bias=False)
        self._second = TowerProduct.load(weights, [("projector.2", outputs)], outputs, bias=False)

    def __call__(self, vectors: Tensor) -> Tensor:
        stacked = vectors.reshape(-1, self._wide)
        inner = reference.plain_activation(self._first(stacked), self._activation)
        return self._second(inner)


def load_sound_projector(
    spec: AudioSpec, weights: Weights, outputs: int, *, at: str = "projector"
) -> SoundProjector | WindowQueries | Embedder:
    """`outputs` is the decoder's hidden size. `at`: what the names of a TwofoldProjector's tensors
    begin with. Raises UnsupportedModel for weights that don't fit."""
    tower = spec.tower
    inputs = tower.given_size if isinstance(tower, ConformerSpec) else tower.hidden_size
    match spec.projector:
        case LinearProjector():
            return _Linear(weights, inputs, outputs)
        case StackProjector():
            return _Stack(spec.projector, weights, inputs, outputs)
        case TwofoldProjector():
            return _Twofold(weights, at, inputs, outputs)
        case NarrowProjector():
            return _Narrow(spec.projector, weights, inputs, outputs)
        case NormedProjector():
            return NormedRows(spec.projector, weights, inputs, outputs)
        case EmbedderProjector():
            return Embedder(spec.projector, weights, inputs, outputs)
        case QueryProjector():
            return WindowQueries(spec.projector, weights, inputs, outputs)
        case None:
            return _AsTheyAre()
