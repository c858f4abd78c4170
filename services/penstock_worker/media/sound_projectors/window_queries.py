"""Learned queries over windows of a tower's vectors (QueryProjector)."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from penstock.model.sound_projector_spec import QueryProjector
from penstock_worker.media.sound_projector import SoundProjector
from penstock_worker.vision.layer import TowerProduct
from penstock_worker.vision.query_layers import QueryLayers
from penstock_worker.weights.weights import Weights


class WindowQueries(SoundProjector, of=QueryProjector):
    """Makes rows of windows of a tower's vectors."""

    def __init__(
        self, spec: QueryProjector, weights: Weights, inputs: int, outputs: int, at: str
    ) -> None:
        size = spec.hidden_size
        self._query = weights.take(f"{at}.query", (1, spec.queries, size))
        self._layers = QueryLayers(
            weights,
            f"{at}.qformer",
            size,
            shown=inputs,
            heads=spec.num_heads,
            inner=spec.intermediate_size,
            norm=spec.norm,
            layers=spec.num_layers,
            seeing=spec.seeing,
        )
        self._out = TowerProduct.load(weights, [(f"{at}.linear", outputs)], size)
        self._window = spec.window

    def __call__(self, vectors: Tensor) -> Tensor:
        around = functional.pad(vectors, (0, 0, 0, -len(vectors) % self._window))
        shown = around.unflatten(0, (-1, self._window))
        queries = self._query.expand(len(shown), -1, -1)
        return self._out(self._layers(queries, shown).flatten(0, 1))
