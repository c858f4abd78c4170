"""What makes vectors of a sound: a module of `towers` for each form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor

from penstock.model.audio_spec import SoundTowerSpec
from penstock_worker.media import towers
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.projector import class_of
from penstock_worker.vision.rows import RowThreads
from penstock_worker.weights.weights import Weights

_FORMS: dict[type, type[HearingTower]] = {}


class HearingTower(ABC):
    """A subclass says of which form by `of`. Loads its weights when it is constructed, and is
    read-only from then on."""

    def __init_subclass__(cls, of: type) -> None:
        _FORMS[of] = cls

    @abstractmethod
    def __init__(self, spec: Any, weights: Weights, threads: RowThreads) -> None:
        """Raises UnsupportedModel for weights that don't fit."""

    @abstractmethod
    def work(self, frames: int) -> int:
        """Multiplications for so many windows, more or less."""

    @abstractmethod
    def pieces(self, mel: Tensor, layer_done: Callable[[], None] = lambda: None) -> Pieces[Tensor]:
        """Maps float32 [chunks, bins, windows] to [vectors, size]. `layer_done` is called after
        each layer."""


def load_sound_tower(spec: SoundTowerSpec, weights: Weights, threads: RowThreads) -> HearingTower:
    """Raises UnsupportedModel for weights that don't fit, and for a form that no module has."""
    return class_of(type(spec), _FORMS, towers)(spec, weights, threads)
