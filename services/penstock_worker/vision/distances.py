"""A layer whose scores depend on how far apart two patches lie, and that attends within squares of
patches or to a whole tile.

Sources: Kirillov et al., "Segment anything", 2023; Li et al., "Exploring plain vision transformer
backbones for object detection", 2022.
"""

from __future__ import annotations

from math import isqrt

import torch
from torch import Tensor
from torch.nn import functional

from penstock.model.tower_spec import TowerSpec, WindowSpec
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.layer import LAYER_OF, LayerForm, TowerLayer
from penstock_worker.vision.rows import RowThreads, attention_work
from penstock_worker.weights.weights import Weights


class DistanceLayer(TowerLayer):
    """A tower's layer. Tiles are squares."""

    def __init__(
        self,
        spec: TowerSpec,
        windows: WindowSpec,
        weights: Weights,
        number: int,
        form: LayerForm,
        threads: RowThreads,
    ) -> None:
        super().__init__(spec, weights, number, form, threads)
        self._side = 0 if number in windows.whole else windows.side
        shape = (2 * (self._side or windows.grid) - 1, spec.head_dim)
        names = (f"{LAYER_OF}{number}.distances.{way}" for way in ("rows", "columns"))
        self._vectors = [weights.take(name, shape) for name in names]
        # What a place without a patch has: a product of zeros.
        nothing = torch.zeros(1, spec.hidden_size, dtype=weights.dtype, device=weights.device)
        self._nothing = self._qkv(nothing).view(1, 3, spec.num_heads, -1)
        self._scale = spec.head_dim**-0.5

    def seen_work(self, lengths: list[int]) -> int:
        tile, heads = isqrt(lengths[0]), self._spec.num_heads
        side, size = self._side or tile, self._spec.hidden_size
        squares = len(lengths) * (-(-tile // side)) ** 2
        products = squares * side**2 * 2 * side * size
        return products + attention_work([side**2] * squares, size + heads * side)

    def _seen(self, three: Tensor, lengths: list[int]) -> Pieces[Tensor]:
        tile = isqrt(lengths[0])
        side = self._side or tile
        places = _in_squares(len(lengths), tile, side).to(three.device)
        query, key, value = torch.cat((three, self._nothing))[places].unbind(1)
        within = [side * side] * (len(places) // side**2)
        query = yield from self._told_apart(query, side)
        key = torch.cat((key, _marks(key, side)), 2)
        found = yield from self._threads.attended(query, key, value, within, 1.0)
        shown = places < len(three)
        out = torch.empty_like(three[:, 0])
        out[places[shown]] = found[shown]
        return out

    def _told_apart(self, query: Tensor, side: int) -> Pieces[Tensor]:
        """Queries, scaled, each followed by its products with the vectors of the distance to each
        row of its square, and to each column: a key that has a 1 in its row's place, and in its
        column's, adds these to its score. [rows, heads, head size + 2 * side]."""
        rows, columns = (_by_distance(each, side) for each in self._vectors)
        squares = query.unflatten(0, (-1, side, side))

        def of_squares(some: Tensor) -> Tensor:
            """[squares, side, side, heads, size]."""
            to_rows = torch.einsum("nrchd,rkd->nrchk", some, rows)
            to_columns = torch.einsum("nrchd,ckd->nrchk", some, columns)
            return torch.cat((some * self._scale, to_rows, to_columns), 4)

        each = 2 * side * squares[0].numel()
        found = yield from self._threads.mapped(of_squares, squares, each=each)
        return found.flatten(0, 2)


def _in_squares(tiles: int, tile: int, side: int) -> Tensor:
    """[squares * side * side] int64: which row stands at each place of the squares, square by
    square; the number of all rows where there is none. tile, side: patches in a row of a tile and
    of a square."""
    count = tiles * tile**2
    rows = torch.arange(count).view(tiles, tile, tile)
    missing = -tile % side
    filled = functional.pad(rows, (0, missing, 0, missing), value=count)
    apart = filled.unflatten(2, (-1, side)).unflatten(1, (-1, side))
    return apart.transpose(2, 3).flatten()


def _by_distance(vectors: Tensor, side: int) -> Tensor:
    """[side, side, head size]: for each row of a square, the vectors of its distance to each. Those
    of a smaller or larger square than they were made for are stretched over its distances."""
    if len(vectors) != 2 * side - 1:
        planes = vectors.t()[None]
        vectors = functional.interpolate(planes, size=2 * side - 1, mode="linear")[0].t()
    place = torch.arange(side, device=vectors.device)
    return vectors[place[:, None] - place[None, :] + side - 1]


def _marks(key: Tensor, side: int) -> Tensor:
    """[rows, heads, 2 * side]: a 1 in the place of a key's row, and of its column."""
    place = torch.arange(side * side, device=key.device)
    marks = torch.cat([functional.one_hot(each, side) for each in (place // side, place % side)], 1)
    squares = len(key) // side**2
    return marks.to(key.dtype).repeat(squares, 1)[:, None].expand(-1, key.shape[1], -1)
