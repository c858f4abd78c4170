"""What makes rows of a page of a tower's patches: convolutions, and layers in which learned queries
follow what these give.

Source: DeepSeek-AI, "DeepSeek-OCR 2: visual causal flow", 2026.
"""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.model.document_spec import DocumentProjector
from penstock_kernels import reference
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.convolutions import Convolutions
from penstock_worker.vision.layer import LayerForm, TowerLayer, TowerNorm, TowerProduct
from penstock_worker.vision.picture import Picture
from penstock_worker.vision.projector import Projector, ProjectorParts
from penstock_worker.vision.rows import RowThreads

WITHIN = "projector."
"""What the names of the layers' tensors begin with."""


class Documents(Projector[DocumentProjector], of=DocumentProjector):
    ENDS = 1
    ORDERED = True

    def __init__(self, spec: DocumentProjector, around: ProjectorParts) -> None:
        super().__init__(spec, around)
        weights, outputs = around.weights, around.outputs
        layers = spec.layers
        size = layers.hidden_size
        self._convolutions = Convolutions(weights, around.inputs, spec.channels, size, spec.norm)
        self._queries = [
            weights.take(f"{WITHIN}queries.{number}.weight", (count, size))
            for number, count in enumerate(spec.queries)
        ]
        form = LayerForm(gated=True, bias=False, kv_heads=layers.num_kv_heads)
        self._layers = [
            _QueryLayer(layers, weights, number, form, around.threads, WITHIN)
            for number in range(layers.num_layers)
        ]
        self._last = TowerNorm(weights, f"{WITHIN}norm", size, layers.norm)
        self._product = TowerProduct.load(weights, [(f"{WITHIN}out", outputs)], size)
        self._end = weights.take(f"{WITHIN}end", (outputs,))[None]

    @property
    def row_work(self) -> int:
        """Multiplications for each query, with its share of what it sees."""
        rows = 2 * self._spec.queries[-1]
        each = sum(2 * layer.row_work + 2 * layer.seen_work([1]) * rows for layer in self._layers)
        return self._convolutions.work + each + self._product.size

    def rows(self, picture: Picture) -> int:
        vectors = self._spec.vectors_of(picture.rows, picture.columns)
        return picture.tiles * self._spec.queries[self._spec.table_of(vectors)]

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        tiles = yield from self._convolutions.pieces(vectors, picture, threads)
        seen = tiles.flatten(1, 2)
        queries = self._queries[self._spec.table_of(seen.shape[1])]
        hidden = torch.cat((seen, queries.expand(picture.tiles, -1, -1)), 1)
        rows, patches = hidden.shape[1], seen.shape[1]
        angles = self._angles(rows, picture.tiles, hidden.device)
        hidden = hidden.flatten(0, 1)
        for layer in self._layers:
            hidden = yield from layer.pieces(hidden, [patches, rows], angles)
        found = hidden.unflatten(0, (picture.tiles, rows))[:, patches:].flatten(0, 1)
        out = yield from threads.mapped(self._made, found, each=self._product.size)
        return out if picture.behind is not None else torch.cat((out, self._end))

    def _made(self, found: Tensor) -> Tensor:
        return self._product(self._last(found.contiguous()))

    def _angles(self, rows: int, tiles: int, device: torch.device) -> tuple[Tensor, Tensor]:
        layers = self._spec.layers
        frequencies = reference.inverse_frequencies(layers.head_dim, layers.theta)
        cos, sin = reference.rope_table(frequencies, rows)
        return cos.repeat(tiles, 1).to(device), sin.repeat(tiles, 1).to(device)


class _QueryLayer(TowerLayer):
    """A layer over the vectors of each tile and its queries. lengths: of the vectors, and of both
    together."""

    def _seen(self, three: Tensor, lengths: list[int]) -> Pieces[Tensor]:
        patches, rows = lengths
        query, key, value = three.unbind(1)
        mask = torch.ones(rows, rows, dtype=torch.bool, device=three.device).tril()
        mask[:, :patches] = True
        tiles = [rows] * (len(three) // rows)
        return (yield from self._threads.attended(query, key, value, tiles, mask=mask))
