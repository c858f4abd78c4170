"""Turns the arrays of a prepared item into its encoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from penstock.forms.arrays import FRAMES
from penstock.forms.form import ImageForm
from penstock.forms.video import VideoForm
from penstock.model.media_facts import Preparation
from penstock.model.prepared_model import PreparedModel
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.picture import UnfitPicture
from penstock_worker.vision.vision_model import VisionModel, open_tower

CPU = torch.device("cpu")


class Sight:
    """A model's tower, and how its pictures and videos were prepared."""

    def __init__(
        self,
        model: VisionModel,
        preparation: Preparation,
        layer_done: Callable[[], None],
        video: Preparation | None = None,
    ) -> None:
        """`layer_done` is called after each of the tower's layers. `video`: None for a model that
        takes pictures only."""
        self._model = model
        self._preparation = preparation
        self._video = video
        self._layer_done = layer_done

    def check(self, tensors: Mapping[str, np.ndarray], rows: int, grid: tuple[int, ...]) -> int:
        return self._model.check(self._inputs(tensors), rows, grid)

    def encode(self, tensors: Mapping[str, np.ndarray]) -> Tensor:
        picture = self._model.read(self._inputs(tensors))
        return self._model.encode(picture, self._layer_done)

    def pieces(self, tensors: Mapping[str, np.ndarray]) -> Pieces[Tensor]:
        return self._model.pieces(self._model.read(self._inputs(tensors)), self._layer_done)

    def _inputs(self, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        try:
            if isinstance(self._video, VideoForm) and FRAMES in tensors:
                return self._video.inputs(tensors)
            if isinstance(self._preparation, ImageForm):
                return self._preparation.inputs(tensors)
            raise ValueError("the model takes no pictures")
        except ValueError as error:
            raise UnfitPicture(str(error)) from None


def load_tower(
    prepared: PreparedModel,
    dtype: torch.dtype,
    load_format: str,
    device: torch.device = CPU,
    threads: int = 1,
) -> VisionModel:
    """Raises UnsupportedModel for weights that don't fit."""
    weights = open_tower(prepared.weights, dtype, device=device, load_format=load_format)
    return VisionModel(prepared.config, weights, threads)
