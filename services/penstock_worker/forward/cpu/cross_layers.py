"""Layers that attend to an encoder's output, and what stores its keys and values.

An encoder's rows are the first tokens of a sequence (see CrossAttentionSpec). Own attention keeps
to the tokens after them, as a chunk of positions that begins there; attention to the encoder keeps
to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from penstock.model.config import ModelConfig
from penstock_kernels.cpu.program import Attention, Buffer, Phase, PhaseKind, Program
from penstock_worker.forward.cpu.gates import forms_of
from penstock_worker.forward.cpu.layers import LayerPhases
from penstock_worker.forward.cpu.weights import CrossWeights, LayerWeights, ModelWeights


@dataclass(frozen=True)
class CrossLayerPhases(LayerPhases):
    """Phases of a decoder's layer."""

    def phases(self) -> Iterator[Phase]:
        yield from self._attention()
        yield from self._added([self._output()], None)
        crossed = self._crossed()
        yield from crossed._attention()
        yield from crossed._added([crossed._output()], None)
        yield from self._fed()

    def _crossed(self) -> CrossLayerPhases:
        """The layer's phases with the attention to the encoder in the place of its own. It has no
        keys: they are stored already."""
        cross = _weights(self.weights)
        weights = replace(
            self.weights,
            attention_norm=cross.norm,
            query=cross.query,
            key=None,
            value=None,
            output=cross.output,
        )
        attention = replace(
            self.attention,
            layer=self.config.num_layers + self.attention.layer,
            chunk=None,
            through=self.config.encoder_rows,
        )
        return replace(self, attention=attention, weights=weights)


def compile_stored(
    config: ModelConfig, weights: ModelWeights, places: Sequence[tuple[int, int]]
) -> Program:
    """Returns what a step does with an encoder's rows: each layer's keys and values of them go to
    the cache. Queries are made, too, and read by nobody."""
    layers = [_weights(layer) for layer in weights.layers]
    readers = [each for cross in layers for each in (cross.query, cross.key, cross.value)]
    width = config.hidden_size
    phases = [
        Phase(kind=PhaseKind.EMBED, matrices=(weights.embedding,)),
        Phase(kind=PhaseKind.TAKE_ROWS, width=width, adds=False),
        Phase(
            kind=PhaseKind.MAKE_INPUT,
            target=Buffer.INPUT,
            width=width,
            forms=forms_of(*readers),
            waits=False,
        ),
    ]
    for number, (cross, (group, place)) in enumerate(zip(layers, places, strict=True)):
        attention = Attention(
            layer=number,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            group=group,
            place=place,
        )
        phases.append(
            Phase(
                kind=PhaseKind.HEADS,
                source=Buffer.INPUT,
                target=Buffer.QUERIES,
                attention=attention,
                matrices=(cross.query, cross.key, cross.value),
                ends_layer=True,
            )
        )
    phases.append(Phase(kind=PhaseKind.ROWS, width=width, waits=False))
    return Program(tuple(phases), config.vocab_size)


def _weights(layer: LayerWeights) -> CrossWeights:
    if layer.cross is None:
        raise ValueError("a layer doesn't attend to an encoder")
    return layer.cross
