"""What encodes a model's media: planned with its recipe, read with its weights, connected to its
forward pass. Towers are imported where a model has them: most have none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch

from penstock.errors import UnsupportedModel
from penstock.model.prepared_model import PreparedModel
from penstock.protocol.to_worker import Setup
from penstock_worker.media.encoder import MediaEncodings
from penstock_worker.media.interface import MEL, Sees
from penstock_worker.media.pieces import Pieces
from penstock_worker.media.planning import media_of
from penstock_worker.parallel.ranks import Ranks

if TYPE_CHECKING:
    from torch import Tensor

Connect = Callable[[Callable[[], None]], None]
"""Called with a function that is called after each of a tower's layers."""


class ModelMedia:
    """The media of a model, which the ranks of the first stage encode."""

    def __init__(
        self,
        prepared: PreparedModel,
        setup: Setup,
        ranks: Ranks,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        threads: int = 1,
        joins_spans: bool = True,
    ) -> None:
        """`dtype`: of the tower and of what it gives (None: float32), which are on `device` (None:
        the CPU). `threads`: that encode an item on a CPU. `joins_spans`: see MediaEncodings."""
        self.encodings: MediaEncodings | None = media_of(
            prepared, setup, 4 if dtype is None else dtype.itemsize, joins_spans
        )
        """The model's encodings; None: it takes none."""
        self._prepared = prepared
        self._load_format = setup.load_format
        self._encodes = ranks.place.first
        self._dtype = dtype
        self._device = device
        self._threads = threads

    def load(self) -> Connect:
        """Reads the tower. Returns what connects it. Raises UnsupportedModel for weights that don't
        fit."""
        encodings = self.encodings
        if encodings is None or not self._encodes:
            return connect_nothing
        dtype = torch.float32 if self._dtype is None else self._dtype
        device = torch.device("cpu") if self._device is None else self._device
        senses = load_senses(self._prepared, dtype, self._load_format, device, self._threads)
        return lambda done: encodings.see_with(senses(done))


def connect_nothing(done: Callable[[], None]) -> None:
    """Connects nothing: the rank encodes nothing."""


Senses = Callable[[Callable[[], None]], Sees]
"""Makes an encoder; its argument is called after each of a tower's layers."""


def load_senses(
    prepared: PreparedModel,
    dtype: torch.dtype,
    load_format: str,
    device: torch.device,
    threads: int = 1,
) -> Senses:
    """Reads the tower's weights. Raises UnsupportedModel for those that don't fit, and for a model
    whose files don't say how its media are prepared."""
    config, media = prepared.config, prepared.media
    if media is None:
        raise UnsupportedModel("the model's files don't say how media are prepared")
    if config.audio is not None and config.vision is not None and "image" in media.kinds:
        ears = _load_hearing(prepared, dtype, load_format, device, threads)
        alone = msgspec.structs.replace(config, audio=None)
        seeing = msgspec.structs.replace(prepared, config=alone)
        eyes = load_senses(seeing, dtype, load_format, device, threads)
        return lambda layer_done: BothSenses(eyes(layer_done), ears(layer_done))
    if config.audio is not None:
        return _load_hearing(prepared, dtype, load_format, device, threads)
    from penstock_worker.vision.sight import Sight, load_tower

    sees = load_tower(prepared, dtype, load_format, device, threads)
    preparation, video = media.kinds["image"].preparation, media.kinds.get("video")
    frames = None if video is None else video.preparation
    return lambda layer_done: Sight(sees, preparation, layer_done, frames)


def _load_hearing(
    prepared: PreparedModel,
    dtype: torch.dtype,
    load_format: str,
    device: torch.device,
    threads: int,
) -> Senses:
    from penstock_worker.media.hearing import AudioModel, Hearing, open_audio_tower

    weights = open_audio_tower(prepared.weights, dtype, device=device, load_format=load_format)
    model = AudioModel(prepared.decoder, weights, threads)
    return lambda layer_done: Hearing(model, layer_done)


class BothSenses:
    """Gives each item to what encodes its kind, which its tensors tell."""

    def __init__(self, sees: Sees, hears: Sees) -> None:
        self._sees = sees
        self._hears = hears

    def check(self, tensors: Mapping[str, np.ndarray], rows: int, grid: tuple[int, ...]) -> int:
        return self._of(tensors).check(tensors, rows, grid)

    def encode(self, tensors: Mapping[str, np.ndarray]) -> Tensor:
        return self._of(tensors).encode(tensors)

    def pieces(self, tensors: Mapping[str, np.ndarray]) -> Pieces[Tensor]:
        return self._of(tensors).pieces(tensors)

    def _of(self, tensors: Mapping[str, np.ndarray]) -> Sees:
        return self._hears if MEL in tensors else self._sees
