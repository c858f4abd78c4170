"""Learned queries that see all patches of a tile (ResamplerProjector).

Sources: Yao et al., "MiniCPM-V: a GPT-4V level MLLM on your phone", 2024; Bai et al., "Qwen-VL",
2023.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor
from torch.nn import functional

from penstock.model.layer_spec import NormSpec
from penstock.model.projector_spec import ResamplerProjector
from penstock_kernels import reference
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.layer import TowerNorm, TowerProduct
from penstock_worker.vision.picture import Picture
from penstock_worker.vision.projector import Projector, ProjectorParts
from penstock_worker.vision.rows import RowThreads
from penstock_worker.weights.weights import Weights

THETA = 10_000.0
_NOT_NEEDED = re.compile(r"^(?:temporal_)?pos_embed(?:_k)?$")
"""Tables that some files have, although they follow from the sizes; that of frames is for videos
alone."""


class Resampler(Projector[ResamplerProjector], of=ResamplerProjector):
    PARTED = True

    def __init__(self, spec: ResamplerProjector, around: ProjectorParts) -> None:
        super().__init__(spec, around)
        weights, inputs, outputs = around.weights, around.inputs, around.outputs
        norm = NormSpec(kind="layer", eps=spec.eps, bias=True)
        at, size = "projector.attn", outputs
        self._kv: TowerProduct | None = None
        if inputs != size:
            self._kv = TowerProduct.load(weights, [("projector.kv", size)], inputs, bias=False)
        self._seen_norm = TowerNorm(weights, "projector.ln_kv", size, norm)
        query, self._key, self._value = _attended(weights, at, size)
        self._mixed = TowerProduct.load(weights, [(f"{at}.out", size)], size)
        self._norm = TowerNorm(weights, "projector.ln_post", size, norm)
        self._out = _last(weights, size)
        # The queries are the same for all pictures.
        asked = weights.take("projector.query", (spec.queries, size))
        asked = query(TowerNorm(weights, "projector.ln_q", size, norm)(asked))
        apart = asked.unflatten(1, (spec.num_heads, -1)).transpose(0, 1)
        self._query = apart.contiguous()[None]
        weights.ignore_those(lambda name: bool(_NOT_NEEDED.match(name.removeprefix("projector."))))
        self._size = size
        self._patch_work = (0 if self._kv is None else self._kv.size) + 2 * size * size
        self._row_work = self._mixed.size + self._out.size

    @property
    def row_work(self) -> int:
        """Multiplications for each row, with its share of the patches that it sees."""
        patches = self._spec.side**2
        share = -(-patches // self._spec.queries)
        return self._row_work + share * self._patch_work + 2 * patches * self._size

    def rows(self, picture: Picture) -> int:
        return picture.tiles * self._spec.queries

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        places = sines(picture.rows, picture.columns, self._size).to(vectors.device, vectors.dtype)
        shown = (vectors, places.repeat(picture.tiles, 1))
        both = yield from threads.mapped(self._seen, *shown, each=self._patch_work)
        tiles = both.unflatten(0, (picture.tiles, picture.per_tile))
        found = yield from threads.each(self._found, tiles, each=self._attention_work(picture))
        rows = found.flatten(0, 1)
        return (yield from threads.mapped(self._output, rows, each=self._row_work))

    def _attention_work(self, picture: Picture) -> int:
        return 2 * self._spec.queries * picture.per_tile * self._size

    def _seen(self, vectors: Tensor, places: Tensor) -> Tensor:
        """[patches, 2 * size]: keys, then values."""
        shown = vectors if self._kv is None else self._kv(vectors)
        shown = self._seen_norm(shown)
        return torch.cat((self._key(shown + places), self._value(shown)), 1)

    def _found(self, tiles: Tensor) -> Tensor:
        """[tiles, queries, size] of [tiles, patches, 2 * size]."""
        apart = tiles.unflatten(2, (2, self._spec.num_heads, -1)).permute(2, 0, 3, 1, 4)
        key, value = (each.contiguous() for each in apart.unbind(0))
        query = self._query.expand(len(tiles), -1, -1, -1)
        found = functional.scaled_dot_product_attention(query, key, value)
        return found.transpose(1, 2).flatten(2).contiguous()

    def _output(self, rows: Tensor) -> Tensor:
        return self._out(self._norm(self._mixed(rows)))


def sines(rows: int, columns: int, size: int) -> Tensor:
    """What is added to the patches of a tile, [rows * columns, size] float32: sines and cosines of
    a patch's column, then of its row, a quarter of the numbers each."""
    frequencies = reference.inverse_frequencies(size // 2, THETA)
    across, down = (
        torch.arange(count, dtype=torch.float32)[:, None] * frequencies for count in (columns, rows)
    )
    of_columns, of_rows = (torch.cat((each.sin(), each.cos()), 1) for each in (across, down))
    whole = (
        of_columns[None].expand(rows, -1, -1),
        of_rows[:, None].expand(-1, columns, -1),
    )
    return torch.cat(whole, 2).flatten(0, 1)


def _attended(weights: Weights, at: str, size: int) -> list[TowerProduct]:
    """The products of queries, keys and values, which are one matrix in the makers' files."""
    if not weights.has(f"{at}.qkv.weight"):
        return [TowerProduct.load(weights, [(f"{at}.{part}", size)], size) for part in "qkv"]
    matrix = weights.take(f"{at}.qkv.weight", (3 * size, size))
    bias = weights.take(f"{at}.qkv.bias", (3 * size,))
    parts = zip(matrix.chunk(3), bias.chunk(3), strict=True)
    return [TowerProduct(each.clone(), own.clone()) for each, own in parts]


def _last(weights: Weights, size: int) -> TowerProduct:
    """The last product, whose matrix the makers multiply by from the left."""
    if weights.has("projector.out.weight"):
        return TowerProduct.load(weights, [("projector.out", size)], size, bias=False)
    columns = weights.take("projector.out.columns", (size, size))
    return TowerProduct(columns.t().contiguous(), None)
