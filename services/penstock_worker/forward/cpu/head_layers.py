"""The phases of a layer that drafts by the embedding beside the hidden state (EAGLE-3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock_kernels.cpu.program import Buffer, Phase, PhaseKind
from penstock_worker.forward.cpu.gates import forms_of
from penstock_worker.forward.cpu.layers import LayerPhases


@dataclass(frozen=True)
class HeadLayerPhases(LayerPhases):
    """A layer whose attention reads both normed vectors side by side, which are in MIXED."""

    def _attention(self) -> Iterator[Phase]:
        if self.spec.order != "pre" or self.weights.output_gate is not None:
            raise ValueError("no program has such a layer of a head")
        yield Phase(
            kind=PhaseKind.MAKE_INPUT,
            source=Buffer.MIXED,
            target=Buffer.INPUT,
            width=self.config.attention_inputs,
            forms=forms_of(*self._heads_matrices()),
        )
        yield self._heads()
        yield from self._placed()
        yield from self._attended()
