"""A model's audio encoder: a tower over prepared sounds, and its projector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from penstock.errors import UnsupportedModel
from penstock.model.audio_spec import (
    AudioSpec,
)
from penstock.model.config import ModelConfig
from penstock.model.sound_projector_spec import TwofoldProjector
from penstock_worker.media.interface import MEL
from penstock_worker.media.pieces import MILLION, Pieces, whole
from penstock_worker.media.sound_projector import load_sound_projector
from penstock_worker.media.sound_tower import load_sound_tower
from penstock_worker.media.unfit import UnfitItem
from penstock_worker.vision.rows import RowThreads
from penstock_worker.weights.opening import open_tower_weights
from penstock_worker.weights.weights import Weights

BESIDE = "beside_pictures"
"""The name of another one that a sound may have for a TwofoldProjector: int32 [1], 1."""


class UnfitSound(UnfitItem):
    """The tower can't take the sound."""


class AudioModel:
    """Loads its weights when it is constructed, and is read-only from then on."""

    def __init__(self, config: ModelConfig, weights: Weights, threads: int = 1) -> None:
        """`threads`: that encode a sound on a CPU.

        Raises UnsupportedModel for a model without an audio tower, and for weights that don't
        fit."""
        if config.audio is None:
            raise UnsupportedModel("the model takes no audio")
        self.spec: AudioSpec = config.audio
        self._threads = RowThreads(threads)
        self._tower = load_sound_tower(self.spec.tower, weights, self._threads)
        self._projector = load_sound_projector(self.spec, weights, config.hidden_size)
        self._projector_with_pictures = self._projector
        if isinstance(self.spec.projector, TwofoldProjector):
            self._projector_with_pictures = load_sound_projector(
                self.spec, weights, config.hidden_size, at="projector.beside"
            )
        self._width = config.media_width
        self._divisible = weights.device.type == "cpu"
        weights.finish()

    def read(self, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the spectrogram that an item's tensors hold, [chunks, bins, windows]. Raises
        UnfitSound."""
        twofold = isinstance(self.spec.projector, TwofoldProjector)
        if set(tensors) != {MEL} and not (twofold and set(tensors) == {MEL, BESIDE}):
            raise UnfitSound(
                f"a prepared sound has {MEL}, and not {', '.join(sorted(tensors)) or 'nothing'}"
            )
        mel, spec = tensors[MEL], self.spec
        bins = spec.tower.mel_bins
        if mel.dtype != np.float32 or mel.ndim != 3 or not mel.size or mel.shape[1] != bins:
            raise UnfitSound(
                f"a sound is {mel.dtype} of shape {mel.shape}; float32 [chunks, {bins}, windows] "
                "is needed"
            )
        chunks, _, frames = mel.shape
        if not spec.takes(chunks, frames):
            raise UnfitSound(f"a sound has {chunks} chunks of {frames} windows; {spec.needed}")
        return mel

    def check(self, tensors: Mapping[str, np.ndarray], rows: int, grid: tuple[int, ...]) -> int:
        """Returns MediaReady.work of an item.

        Raises UnfitSound if the tower can't take what an item's tensors hold, or if that isn't
        what was said of it."""
        chunks, _, frames = self.read(tensors).shape
        found = self.spec.rows(chunks, frames)
        if found != rows or grid:
            raise UnfitSound(
                f"the sound becomes {found} rows without a grid; {rows} with {grid or ()} were "
                "announced"
            )
        work = chunks * self._tower.work(frames)
        work += found * self._projector.size
        return -(-work // MILLION) if self._divisible else 0

    def encode(
        self, tensors: Mapping[str, np.ndarray], layer_done: Callable[[], None] = lambda: None
    ) -> Tensor:
        """Returns [rows, width], in order of time; a sound's parts of levels that a tower which
        sees has are zeros (see VisionSpec.row_width). `layer_done` is called after each layer."""
        return whole(self.pieces(tensors, layer_done))

    def pieces(
        self, tensors: Mapping[str, np.ndarray], layer_done: Callable[[], None] = lambda: None
    ) -> Pieces[Tensor]:
        """`encode` with pauses."""
        mel = torch.from_numpy(self.read(tensors).copy())
        vectors = yield from self._tower.pieces(mel, layer_done)
        projector = self._projector_with_pictures if BESIDE in tensors else self._projector
        rows = yield from projector.pieces(vectors, self._threads)
        if self.spec.row_multiplier != 1.0:
            rows = rows * self.spec.row_multiplier
        return functional.pad(rows, (0, self._width - rows.shape[1])).contiguous()


class Hearing:
    """A model's tower."""

    def __init__(self, model: AudioModel, layer_done: Callable[[], None]) -> None:
        """`layer_done` is called after each of the tower's layers."""
        self._model = model
        self._layer_done = layer_done

    def check(self, tensors: Mapping[str, np.ndarray], rows: int, grid: tuple[int, ...]) -> int:
        return self._model.check(tensors, rows, grid)

    def encode(self, tensors: Mapping[str, np.ndarray]) -> Tensor:
        return self._model.encode(tensors, self._layer_done)

    def pieces(self, tensors: Mapping[str, np.ndarray]) -> Pieces[Tensor]:
        return self._model.pieces(tensors, self._layer_done)


open_audio_tower = partial(open_tower_weights, part="audio")
"""Opens a model's audio tower (see open_tower_weights)."""
