"""What makes lines of rows of a tower's patches: convolutions, a second tower over what these give,
and a product of both.

Source: DeepSeek-AI, "DeepSeek-OCR: contexts optical compression", 2025.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from penstock.model.document_spec import PageProjector
from penstock.model.tower_spec import LearnedPositions
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.convolutions import Convolutions
from penstock_worker.vision.layer import PLAIN, TowerLayer, TowerNorm, TowerProduct
from penstock_worker.vision.picture import Picture, UnfitPicture
from penstock_worker.vision.picture_reading import PIXELS, SHAPES, TILES, only, read_parts
from penstock_worker.vision.places import stretched
from penstock_worker.vision.projector import Projector, ProjectorParts
from penstock_worker.vision.rows import RowThreads


class Pages(Projector[PageProjector], of=PageProjector):
    ENDS = 1

    def __init__(self, spec: PageProjector, around: ProjectorParts) -> None:
        super().__init__(spec, around)
        weights, outputs = around.weights, around.outputs
        layers = spec.layers
        size = layers.hidden_size
        self._convolutions = Convolutions(weights, around.inputs, spec.channels, size, spec.norm)
        self._class = weights.take("class_embedding", (size,))
        table = weights.take("position_embedding.weight", (layers.side**2 + 1, size))
        self._first_place, self._places = table[:1], table[1:]
        self._positions = LearnedPositions(side=layers.side, stretched=True, cubic=True)
        self._first = TowerNorm(weights, "first_norm", size, layers.norm)
        self._layers = [
            TowerLayer(layers, weights, number, PLAIN, around.threads, "projector.")
            for number in range(layers.num_layers)
        ]
        self._product = TowerProduct.load(weights, [("projector.out", outputs)], 2 * size)
        self._newline = weights.take("projector.newline", (outputs,))
        self._end = weights.take("projector.end", (outputs,))[None]
        weights.ignore("patch_embedding.weight")  # the convolutions stand in its place

    @property
    def row_work(self) -> int:
        """Multiplications for each row."""
        rows = len(self._places)
        layers = sum(layer.row_work + layer.seen_work([1]) * rows for layer in self._layers)
        return self._convolutions.work + layers + self._product.size

    def read(self, tensors: Mapping[str, np.ndarray]) -> Picture:
        pixels, shapes, grid = only(tensors, PIXELS, SHAPES, TILES)
        parts = {PIXELS: pixels, SHAPES: shapes}
        return _with_grid(read_parts(parts, self._vision, ordered=True), grid)

    def rows(self, picture: Picture) -> int:
        return self._spec.rows_of(picture.rows, picture.columns, picture.form)

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        tiles = yield from self._convolutions.pieces(vectors, picture, threads)
        count, rows, columns = tiles.shape[:3]
        seen = tiles.flatten(1, 2)
        places = stretched(self._places, self._positions, (rows, columns))
        first = (self._class + self._first_place).expand(count, 1, -1)
        hidden = self._first(torch.cat((first, seen + places), 1).flatten(0, 1))
        lengths = [1 + rows * columns] * count
        for layer in self._layers:
            hidden = yield from layer.pieces(hidden, lengths)
        known = hidden.unflatten(0, (count, -1))[:, 1:]
        both = torch.cat((known, seen), 2).flatten(0, 1)
        made = yield from threads.mapped(self._product, both, each=self._product.size)
        lines = self._in_lines(made.unflatten(0, (count, rows, columns)), picture)
        return lines if picture.behind is not None else torch.cat((lines, self._end))

    def _in_lines(self, made: Tensor, picture: Picture) -> Tensor:
        """The rows of [tiles, rows, columns, outputs] as lines of one picture, each of which a
        learned vector ends."""
        high, wide = picture.form
        whole = made.unflatten(0, (high, wide)).transpose(1, 2).flatten(0, 1).flatten(1, 2)
        ends = self._newline.expand(len(whole), 1, -1)
        return torch.cat((whole, ends), 1).flatten(0, 1)


def _with_grid(picture: Picture, grid: np.ndarray) -> Picture:
    """The picture with the form of its tiles before the last one."""
    if grid.shape != (2,) or grid.dtype != np.int32:
        raise UnfitPicture(f"{TILES} is {grid.dtype} of shape {grid.shape}; 2 int32 are needed")
    rows, columns = (int(each) for each in grid)
    tiles, pages = 0, picture.tiles
    if picture.behind is not None:
        tiles, pages = picture.tiles, picture.behind.tiles
    if min(rows, columns) < 0 or rows * columns != tiles or pages != 1:
        raise UnfitPicture(
            f"{TILES} is {rows} x {columns}; the picture has {tiles} tiles and {pages} pages"
        )
    return replace(picture, form=(rows, columns)) if tiles else picture
