"""Encodes prepared sounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from penstock.errors import UnsupportedModel
from penstock.model.audio_spec import AudioSpec
from penstock.model.config import ModelConfig, WeightFiles
from penstock_worker.audio import names
from penstock_worker.audio.mmproj_names import mmproj_sounds
from penstock_worker.audio.projector import load_sound_projector
from penstock_worker.audio.tower import AudioTower
from penstock_worker.media.pieces import MILLION, Pieces, whole
from penstock_worker.media.unfit import UnfitItem
from penstock_worker.vision.rows import RowThreads
from penstock_worker.weights.placing import CPU
from penstock_worker.weights.towers import open_tower_weights
from penstock_worker.weights.weights import Weights
from penstock_worker.weights.zero_biases import add_zero_biases

MEL = "mel"
"""The name of a prepared sound's tensor: float32 [chunks, bins, windows]."""


class UnfitSound(UnfitItem):
    """The tower can't take the sound."""


def open_audio_tower(
    files: WeightFiles,
    dtype: torch.dtype,
    *,
    device: torch.device = CPU,
    load_format: str = "auto",
) -> Weights:
    """What a model hears with. Raises as `open_tower_weights` does."""
    if files.mmproj and load_format != "dummy":
        found = mmproj_sounds(files.mmproj)
        add_zero_biases(found, names.ZERO_BIASES)
        return Weights(found, dtype, device)
    return open_tower_weights(
        files,
        dtype,
        names.from_hub,
        zero_biases=names.ZERO_BIASES,
        device=device,
        load_format=load_format,
    )


class AudioModel:
    """Loads its weights when it is constructed, and is read-only from then on."""

    def __init__(self, config: ModelConfig, weights: Weights, threads: int = 1) -> None:
        """`threads`: that encode a sound on a CPU.

        Raises UnsupportedModel for a model that doesn't hear, and for weights that don't fit."""
        if config.audio is None:
            raise UnsupportedModel("the model takes no audio")
        self.spec: AudioSpec = config.audio
        self._tower = AudioTower(self.spec.tower, weights, RowThreads(threads))
        self._projector = load_sound_projector(self.spec, weights, config.hidden_size)
        self._divisible = weights.device.type == "cpu"
        weights.finish()

    def rows(self, chunks: int, frames: int) -> int:
        """Embeddings that a sound becomes. frames: windows of each chunk."""
        return chunks * (frames // self.spec.row_frames)

    def read(self, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the spectrogram that an item's tensors hold, [chunks, bins, windows]. Raises
        UnfitSound."""
        if set(tensors) != {MEL}:
            raise UnfitSound(
                f"a prepared sound has {MEL}, and not {', '.join(sorted(tensors)) or 'nothing'}"
            )
        mel, spec = tensors[MEL], self.spec
        whole = spec.tower.chunk_frames
        bins = spec.tower.mel_bins
        if mel.dtype != np.float32 or mel.ndim != 3 or not mel.size or mel.shape[1] != bins:
            raise UnfitSound(
                f"a sound is {mel.dtype} of shape {mel.shape}; float32 [chunks, {bins}, windows] "
                "is needed"
            )
        chunks, _, frames = mel.shape
        cut = spec.cut and chunks == 1 and spec.row_frames <= frames < whole
        if frames != whole and not cut:
            raise UnfitSound(f"a sound has {chunks} chunks of {frames} windows; {whole} are needed")
        return mel

    def check(self, tensors: Mapping[str, np.ndarray], rows: int, grid: tuple[int, ...]) -> int:
        """Returns MediaReady.work of an item.

        Raises UnfitSound if the tower can't take what an item's tensors hold, or if that isn't
        what was said of it."""
        chunks, _, frames = self.read(tensors).shape
        found = self.rows(chunks, frames)
        if found != rows or grid:
            raise UnfitSound(
                f"the sound becomes {found} rows without a grid; {rows} with {grid or ()} were "
                "announced"
            )
        return -(-chunks * self._tower.work(frames) // MILLION) if self._divisible else 0

    def encode(
        self, tensors: Mapping[str, np.ndarray], layer_done: Callable[[], None] = lambda: None
    ) -> Tensor:
        """Returns [rows, hidden], in order of time. `layer_done` is called after each layer."""
        return whole(self.pieces(tensors, layer_done))

    def pieces(
        self, tensors: Mapping[str, np.ndarray], layer_done: Callable[[], None] = lambda: None
    ) -> Pieces[Tensor]:
        """`encode` with pauses."""
        mel = torch.from_numpy(self.read(tensors).copy())
        vectors = yield from self._tower.pieces(mel, layer_done)
        return self._projector(vectors).contiguous()
