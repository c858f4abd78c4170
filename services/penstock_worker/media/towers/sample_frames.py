"""Samples of a sound in the place of a tower's vectors (WaveformSpec)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from penstock.model.audio_spec import WaveformSpec
from penstock_worker.media.pieces import Pieces
from penstock_worker.media.sound_tower import HearingTower
from penstock_worker.vision.rows import RowThreads
from penstock_worker.weights.weights import Weights


class SampleFrames(HearingTower, of=WaveformSpec):
    """A sound's frames of samples as they are (WaveformSpec), where other models have a tower."""

    def __init__(self, spec: WaveformSpec, weights: Weights, threads: RowThreads) -> None:
        """weights: the audio tower's, whose dtype and device frames get."""
        self._dtype, self._device = weights.dtype, weights.device

    def work(self, frames: int) -> int:
        return 0

    def pieces(self, mel: Tensor, layer_done: Callable[[], None] = lambda: None) -> Pieces[Tensor]:
        """Maps float32 [1, frame, frames] to [frames, frame]. There is no layer, after which
        `layer_done` would be called."""
        yield from ()
        return mel[0].t().contiguous().to(self._device, self._dtype)
