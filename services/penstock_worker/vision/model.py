"""Encodes prepared pictures: tower and projector together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from penstock.errors import UnsupportedModel
from penstock.model.config import EncoderConfig, ModelConfig, WeightFiles
from penstock.model.vision_spec import LearnedPositions, VisionSpec
from penstock_worker.media.pieces import MILLION, Pieces, whole
from penstock_worker.vision import names
from penstock_worker.vision.mmproj_names import mmproj_tensors
from penstock_worker.vision.picture import (
    Picture,
    UnfitPicture,
    grid_of,
    read_picture,
    rows_of,
)
from penstock_worker.vision.places import lay_out, table_rows
from penstock_worker.vision.projector import load_projector, load_taps
from penstock_worker.vision.rows import RowThreads
from penstock_worker.vision.tower import Tower
from penstock_worker.weights.placing import CPU
from penstock_worker.weights.towers import open_tower_weights
from penstock_worker.weights.weights import Weights


def open_tower(
    files: WeightFiles,
    dtype: torch.dtype,
    *,
    device: torch.device = CPU,
    load_format: str = "auto",
) -> Weights:
    """What a model sees with. Raises as `open_tower_weights` does."""
    if files.mmproj and load_format != "dummy":
        return Weights(mmproj_tensors(files.mmproj), dtype, device)
    return open_tower_weights(files, dtype, names.from_hub, device=device, load_format=load_format)


class VisionModel:
    """Loads its weights when it is constructed, and is read-only from then on.

    One picture is encoded at a time, so that its bits are its own.
    """

    def __init__(
        self, config: ModelConfig | EncoderConfig, weights: Weights, threads: int = 1
    ) -> None:
        """`threads`: that encode a picture on a CPU.

        Raises UnsupportedModel for a model that doesn't see, and for weights that don't fit."""
        if config.vision is None:
            raise UnsupportedModel("the model takes no images")
        self.spec: VisionSpec = config.vision
        self.row_size = config.row_size
        self.dtype = weights.dtype
        self._threads = RowThreads(threads)
        self._tower = Tower(self.spec.tower, weights, self._threads)
        self._projector = load_projector(self.spec, weights, config.row_size)
        self._taps = dict(
            zip(self.spec.taps, load_taps(self.spec, weights, config.row_size), strict=True)
        )
        self._divisible = weights.device.type == "cpu"
        weights.finish()

    def check(self, tensors: Mapping[str, np.ndarray], rows: int, grid: tuple[int, ...]) -> int:
        """Returns MediaReady.work of an item.

        Raises UnfitPicture if the tower can't take what an item's tensors hold, or if that isn't
        what was said of it."""
        picture = self.read(tensors)
        found, shape = rows_of(picture, self.spec), grid_of(picture, self.spec)
        if found != rows or shape not in (None, grid[:3]):
            raise UnfitPicture(
                f"the picture becomes {found} rows with the grid {shape or ()}; {rows} with {grid} "
                "were announced"
            )
        return self._work(picture, rows) if self._divisible else 0

    def _work(self, picture: Picture, rows: int) -> int:
        """Millions of multiplications, more or less."""
        projectors = [self._projector, *self._taps.values()]
        projected = rows * sum(projector.row_work for projector in projectors)
        return -(-(self._tower.work(picture) + projected) // MILLION)

    def read(self, tensors: Mapping[str, np.ndarray]) -> Picture:
        """Returns the picture that an item's tensors hold. Raises UnfitPicture."""
        picture = read_picture(tensors, self.spec)
        positions = self.spec.tower.positions
        if isinstance(positions, LearnedPositions):
            table_rows(picture, positions)
        return picture

    def encode(self, picture: Picture, layer_done: Callable[[], None] = lambda: None) -> Tensor:
        """Returns [rows, width], in the order in which placeholders stand for them (see
        VisionSpec.row_width). `layer_done` is called after each layer."""
        return whole(self.pieces(picture, layer_done))

    def pieces(
        self, picture: Picture, layer_done: Callable[[], None] = lambda: None
    ) -> Pieces[Tensor]:
        """`encode` with pauses."""
        layout = lay_out(picture, self.spec)
        tapped: list[Tensor] = []

        def after(layer: int, hidden: Tensor) -> Pieces[None]:
            if layer in self._taps:
                tap = self._taps[layer]
                tapped.append((yield from tap.pieces(hidden, picture, self._threads)))
            layer_done()

        vectors = yield from self._tower.pieces(picture, layout, after)
        rows = yield from self._projector.pieces(vectors, picture, self._threads)
        return layout.as_they_came(torch.cat((rows, *tapped), 1)).contiguous()
