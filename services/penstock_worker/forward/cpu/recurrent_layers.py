"""The phases that stand in the attention's place in a recurrent layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock_kernels.cpu.program import Buffer, Phase, PhaseKind
from penstock_kernels.cpu.recurrent import RecurrentKind
from penstock_worker.forward.cpu.gates import forms_of
from penstock_worker.forward.cpu.layers import LayerPhases
from penstock_worker.forward.cpu.weights import RecurrentWeights


@dataclass(frozen=True)
class RecurrentLayerPhases(LayerPhases):
    """A recurrent layer, which one rank has as a whole."""

    def _attention(self) -> Iterator[Phase]:
        weights = self._recurrent
        layer, matrices = weights.layer, [matrix for matrix, _ in weights.products]
        yield self._input(self.weights.attention_norm, *matrices)
        for number, (matrix, first) in enumerate(weights.products):
            yield Phase(
                kind=PhaseKind.PRODUCT,
                source=Buffer.INPUT,
                target=Buffer.QUERIES,
                matrices=(matrix,),
                adds=False,
                part=True,
                first=first,
                width=weights.features,
                # Products of one input into columns of their own needn't wait for each other.
                waits=number == len(weights.products) - 1,
            )
        if layer.kind is not RecurrentKind.SHORT_CONV:
            yield Phase(kind=PhaseKind.CONVOLVE, source=Buffer.QUERIES, recurrent=layer)
        yield Phase(
            kind=PhaseKind.SCAN, source=Buffer.QUERIES, target=Buffer.MIXED, recurrent=layer
        )
        yield Phase(
            kind=PhaseKind.MAKE_INPUT,
            source=Buffer.MIXED,
            target=Buffer.INPUT,
            width=layer.width,
            recurrent=layer,
            forms=forms_of(self.weights.output),
            waits=False,
        )

    @property
    def _recurrent(self) -> RecurrentWeights:
        if self.weights.recurrent is None:
            raise ValueError("a layer that isn't recurrent has no such weights")
        return self.weights.recurrent
