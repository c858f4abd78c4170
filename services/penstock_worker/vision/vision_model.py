"""Encodes prepared pictures: tower and projector together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from penstock.errors import UnsupportedModel
from penstock.model.config import EncoderConfig, ModelConfig
from penstock.model.tower_spec import LearnedPositions, VisionSpec
from penstock_worker.media.pieces import MILLION, Pieces, whole
from penstock_worker.vision.picture import Picture, UnfitPicture
from penstock_worker.vision.places import lay_out, table_rows
from penstock_worker.vision.projector import ProjectorParts, load_projector
from penstock_worker.vision.projectors.mergers import load_deepstack
from penstock_worker.vision.rows import RowThreads
from penstock_worker.vision.tower import make_tower
from penstock_worker.weights.opening import open_tower_weights
from penstock_worker.weights.weights import Weights


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
        self._tower = make_tower(self.spec.tower, weights, self._threads)
        around = ProjectorParts(self.spec, weights, config.row_size, self._threads)
        self._projector = load_projector(around)
        self._mergers = dict(zip(self.spec.deepstack_layers, load_deepstack(around), strict=True))
        self._divisible = weights.device.type == "cpu"
        weights.finish()

    def check(self, tensors: Mapping[str, np.ndarray], rows: int, grid: tuple[int, ...]) -> int:
        """Returns MediaReady.work of an item.

        Raises UnfitPicture if the tower can't take what an item's tensors hold, or if that isn't
        what was said of it."""
        picture = self.read(tensors)
        found, shape = self._rows(picture), self._projector.grid(picture)
        if found != rows or shape not in (None, grid[:3]):
            raise UnfitPicture(
                f"the picture becomes {found} rows with the grid {shape or ()}; {rows} with {grid} "
                "were announced"
            )
        return self._work(picture, rows) if self._divisible else 0

    def _rows(self, picture: Picture) -> int:
        """How many embeddings the picture becomes."""
        parts = (part.merged(self.spec.tower.merged) for part in picture.parts())
        return sum(map(self._projector.rows, parts)) + self._projector.ENDS

    def _work(self, picture: Picture, rows: int) -> int:
        """Millions of multiplications, more or less."""
        projectors = [self._projector, *self._mergers.values()]
        projected = rows * sum(projector.row_work for projector in projectors)
        towered = sum(self._tower.work(part) for part in picture.parts())
        return -(-(towered + projected) // MILLION)

    def read(self, tensors: Mapping[str, np.ndarray]) -> Picture:
        """Returns the picture that an item's tensors hold. Raises UnfitPicture."""
        picture = self._projector.read(tensors)
        positions = self.spec.tower.positions
        if isinstance(positions, LearnedPositions) and not positions.stretched:
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
        rows = [(yield from self._part(picture, layer_done))]
        while picture.behind is not None:
            picture = picture.behind
            rows.append((yield from self._part(picture, layer_done)))
        return torch.cat(rows) if len(rows) > 1 else rows[0]

    def _part(self, picture: Picture, layer_done: Callable[[], None]) -> Pieces[Tensor]:
        """Rows of the tiles of one size."""
        layout = lay_out(picture, self.spec)
        levels: list[Tensor] = []

        def after(layer: int, hidden: Tensor) -> Pieces[None]:
            if layer in self._mergers:
                merger = self._mergers[layer]
                levels.append((yield from merger.pieces(hidden, picture, self._threads)))
            layer_done()

        vectors = yield from self._tower.pieces(picture, layout, after)
        seen = picture.merged(self.spec.tower.merged)
        rows = yield from self._projector.pieces(vectors, seen, self._threads)
        if self.spec.row_multiplier != 1.0:
            rows = rows * self.spec.row_multiplier
        return layout.as_they_came(torch.cat((rows, *levels), 1)).contiguous()


open_tower = partial(open_tower_weights, part="vision")
"""Opens a model's vision tower (see open_tower_weights)."""
