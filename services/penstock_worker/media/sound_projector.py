"""From a tower's vectors of a sound to rows of the decoder's size: `sound_projectors` has all
forms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from penstock.model.audio_spec import AudioSpec, ConformerSpec
from penstock_worker.media import sound_projectors
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.projector import class_of
from penstock_worker.vision.rows import RowThreads
from penstock_worker.weights.weights import Weights

_FORMS: dict[type, type[SoundProjector]] = {}


class SoundProjector(ABC):
    """Maps a tower's output, [vectors, its hidden size], to [rows, the decoder's]. A subclass says
    of which form by `of`."""

    size = 0
    """Multiplications for each row, of one that treats each row by itself."""

    def __init_subclass__(cls, of: type) -> None:
        _FORMS[of] = cls

    @abstractmethod
    def __init__(self, spec: Any, weights: Weights, inputs: int, outputs: int, at: str) -> None:
        """at: what the tensors' names begin with. Raises UnsupportedModel for weights that don't
        fit."""

    @abstractmethod
    def __call__(self, vectors: Tensor) -> Tensor: ...

    def pieces(self, vectors: Tensor, threads: RowThreads) -> Pieces[Tensor]:
        """`threads`: that share the rows of one that treats each by itself."""
        if self.size:
            return (yield from threads.mapped(self, vectors, each=self.size))
        return self(vectors)


def load_sound_projector(
    spec: AudioSpec, weights: Weights, outputs: int, *, at: str = "projector"
) -> SoundProjector:
    """`outputs` is the decoder's hidden size. `at`: what the tensors' names begin with. Raises
    UnsupportedModel for weights that don't fit, and for a form that no module has."""
    made = class_of(type(spec.projector), _FORMS, sound_projectors)
    tower = spec.tower
    inputs = tower.given_size if isinstance(tower, ConformerSpec) else tower.hidden_size
    return made(spec.projector, weights, inputs, outputs, at)
