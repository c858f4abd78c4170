"""Learned queries that see windows of a tower's outputs.

Sources: Granite Vision team, "Granite 4 Vision", 2026; Li et al., "BLIP-2", 2023.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from penstock.model.layer_spec import NormSpec
from penstock.model.projector_spec import WindowPart, WindowProjector
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.layer import TowerNorm, TowerProduct
from penstock_worker.vision.picture import Picture, squares_of
from penstock_worker.vision.projector import ProjectorParts
from penstock_worker.vision.projectors.anyres import InLines, in_lines
from penstock_worker.vision.query_layers import QueryLayers
from penstock_worker.vision.rows import RowThreads
from penstock_worker.weights.weights import Weights

SEEN_NORM = NormSpec(kind="layer", eps=1e-6, bias=True)


class Windows(InLines[WindowProjector], of=WindowProjector):
    """Makes rows with a part for the token's place and one for each level that is added."""

    def __init__(self, spec: WindowProjector, around: ProjectorParts) -> None:
        super().__init__(spec, around)
        weights, outputs, vision = around.weights, around.outputs, around.vision
        size = vision.tower.hidden_size
        self._parts = [_Part(spec, part, weights, size, outputs) for part in spec.parts]
        self._newline = weights.take("projector.newline", (outputs,))
        self._empty_place = len(vision.added_behind) == len(spec.parts)
        self._work = sum(part.query_work for part in self._parts)

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        side = self._spec.side(picture.rows)
        shape = self.shape(picture)
        found: list[Tensor] = []
        for part in self._parts:
            rows = yield from part.pieces(vectors, picture, threads)
            found.append(in_lines(rows, side, shape, self._newline))
        if self._empty_place:
            found.insert(0, torch.zeros_like(found[0]))
        return torch.cat(found, 1)


class _Part:
    def __init__(
        self, spec: WindowProjector, part: WindowPart, weights: Weights, size: int, outputs: int
    ) -> None:
        at = f"projector.{part.name}"
        self._size, self._spec, self._part = size, spec, part
        self._norm = TowerNorm(weights, f"{at}.norm", size, SEEN_NORM)
        self._query = weights.take(f"{at}.query", (1, spec.queries**2, size))
        self._places = weights.take(f"{at}.image_positions", (1, spec.window**2, size))
        self._layers = QueryLayers(
            weights,
            f"{at}.qformer",
            size,
            shown=size,
            heads=spec.num_heads,
            inner=spec.inner,
            norm=spec.norm,
        )
        self._out = TowerProduct.load(weights, [(f"{at}.out_linear", outputs)], size)

    @property
    def query_work(self) -> int:
        """Multiplications for each query, with its share of what it sees."""
        share = (self._spec.window // self._spec.queries) ** 2
        return self._layers.query_work(share) + self._out.size

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        """Returns [tiles * side * side, outputs], tile by tile and row by row."""
        spec, size = self._spec, self._size
        begin = self._part.output * size
        seen = self._norm(vectors[:, begin : begin + size].contiguous())
        tiles = seen.unflatten(0, (picture.tiles, picture.rows, picture.columns))
        shown = squares_of(tiles, spec.window) + self._places
        queries = squares_of(self._smaller(tiles), spec.queries) + self._query
        each = self.query_work * spec.queries**2
        rows = yield from threads.mapped(self._of_windows, queries, shown, each=each)
        count, side = picture.rows // spec.window, spec.queries
        apart = rows.unflatten(0, (picture.tiles, count, count)).unflatten(3, (side, side))
        return apart.transpose(2, 3).flatten(0, 4)

    def _smaller(self, tiles: Tensor) -> Tensor:
        """What the queries begin with, [tiles, side, side, size]."""
        if self._part.corner is not None:
            row, column = divmod(self._part.corner, 2)
            return tiles[:, row::2, column::2]
        side = self._spec.side(tiles.shape[1])
        planes = tiles.permute(0, 3, 1, 2)
        return functional.interpolate(planes, size=[side, side], mode="area").permute(0, 2, 3, 1)

    def _of_windows(self, queries: Tensor, shown: Tensor) -> Tensor:
        """[windows, queries, size] and [windows, patches, size] to [windows, queries, outputs]."""
        hidden = self._layers(queries, shown)
        return self._out(hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2])
