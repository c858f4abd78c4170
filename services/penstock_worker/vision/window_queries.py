"""Learned queries that see windows of a tower's outputs.

Sources: Granite Vision team, "Granite 4 Vision", 2026; Li et al., "BLIP-2", 2023.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from penstock.model.layer_spec import NormSpec
from penstock.model.tower_spec import VisionSpec, WindowPart, WindowProjector
from penstock_kernels import reference
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.layer import TowerNorm, TowerProduct
from penstock_worker.vision.picture import Picture, anyres_of, in_lines, squares_of
from penstock_worker.vision.rows import RowThreads
from penstock_worker.weights.weights import Weights

SEEN_NORM = NormSpec(kind="layer", eps=1e-6, bias=True)


class Windows:
    """Makes rows with a part for the token's place and one for each level that is added."""

    def __init__(
        self, vision: VisionSpec, spec: WindowProjector, weights: Weights, outputs: int
    ) -> None:
        size = vision.tower.hidden_size
        self._parts = [_Part(spec, part, weights, size, outputs) for part in spec.parts]
        self._newline = weights.take("projector.newline", (outputs,))
        self._vision, self._spec = vision, spec
        self._empty_place = len(vision.added_behind) == len(spec.parts)
        self.row_work = sum(part.query_work for part in self._parts)

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        side = self._spec.side(picture.rows)
        shape = anyres_of(picture, self._vision, self._spec)
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
        at, norm = f"projector.{part.name}", spec.norm
        layer = f"{at}.qformer.encoder.layer.0"
        self._size, self._spec, self._part = size, spec, part
        self._norm = TowerNorm(weights, f"{at}.norm", size, SEEN_NORM)
        self._query = weights.take(f"{at}.query", (1, spec.queries**2, size))
        self._places = weights.take(f"{at}.image_positions", (1, spec.window**2, size))
        self._first = TowerNorm(weights, f"{at}.qformer.layernorm", size, norm)
        self._own = _Attention(spec, weights, f"{layer}.attention", size)
        self._seen = _Attention(spec, weights, f"{layer}.crossattention", size)
        up, down = f"{layer}.intermediate_query.dense", f"{layer}.output_query.dense"
        self._up = TowerProduct.load(weights, [(up, spec.inner)], size)
        self._down = TowerProduct.load(weights, [(down, size)], spec.inner)
        self._last = TowerNorm(weights, f"{layer}.output_query.LayerNorm", size, norm)
        self._out = TowerProduct.load(weights, [(f"{at}.out_linear", outputs)], size)

    @property
    def query_work(self) -> int:
        """Multiplications for each query, with its share of what it sees."""
        share = (self._spec.window // self._spec.queries) ** 2
        own = self._own.query_size + self._own.key_size + self._seen.query_size
        products = self._up.size + self._down.size + self._out.size
        return own + share * self._seen.key_size + products

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
        hidden = self._first(queries)
        hidden = self._own(hidden, hidden)
        hidden = self._seen(hidden, shown)
        flat = hidden.flatten(0, 1)
        inner = self._down(reference.plain_activation(self._up(flat), "gelu"))
        return self._out(self._last(inner + flat)).unflatten(0, hidden.shape[:2])


class _Attention:
    """Attention with a norm behind what it adds to."""

    def __init__(self, spec: WindowProjector, weights: Weights, at: str, size: int) -> None:
        keys = [(f"{at}.attention.{name}", size) for name in ("key", "value")]
        self._query = TowerProduct.load(weights, [(f"{at}.attention.query", size)], size)
        self._keys = TowerProduct.load(weights, keys, size)
        self._mixed = TowerProduct.load(weights, [(f"{at}.output.dense", size)], size)
        self._norm = TowerNorm(weights, f"{at}.output.LayerNorm", size, spec.norm)
        self._heads = spec.num_heads
        self.query_size, self.key_size = self._query.size + self._mixed.size, self._keys.size

    def __call__(self, hidden: Tensor, shown: Tensor) -> Tensor:
        """[windows, queries, size] of the same and [windows, patches, size]."""
        windows, count, size = hidden.shape
        query = self._query(hidden.flatten(0, 1)).view(windows, count, self._heads, -1)
        both = self._keys(shown.flatten(0, 1)).view(
            windows, -1, 2, self._heads, size // self._heads
        )
        key, value = both.permute(2, 0, 3, 1, 4).contiguous().unbind(0)
        query = query.transpose(1, 2).contiguous()
        found = functional.scaled_dot_product_attention(query, key, value)
        flat = found.transpose(1, 2).reshape(windows * count, size)
        return self._norm(self._mixed(flat) + hidden.flatten(0, 1)).view(windows, count, size)
