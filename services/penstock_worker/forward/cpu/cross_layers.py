"""Layers that attend to an encoder's output, and what stores its keys and values.

An encoder's rows are the first tokens of a sequence (see CrossAttentionSpec). Own attention keeps
to the tokens after them, as a chunk of positions that begins there; attention to the encoder keeps
to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.model.config import ModelConfig
from penstock_kernels.cpu.decoder import Decoder
from penstock_kernels.cpu.operands import Attention
from penstock_kernels.cpu.program import Buffer, Phase, PhaseKind, Program
from penstock_worker.batch.logits import in_torch
from penstock_worker.forward.cpu.gates import forms_of, product_into
from penstock_worker.forward.cpu.layers import LayerPhases
from penstock_worker.forward.cpu.weights import CrossWeights, LayerWeights, ModelWeights
from penstock_worker.forward.interface import Batch, Forward

if TYPE_CHECKING:
    from torch import Tensor


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
    the cache. Queries are computed, too, and not used."""
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


# Shows what layers ask of an encoder's output: queries and keys of some heads.

KEPT = Buffer.STREAMS
"""The buffer in which queries and keys are collected for alignment; layers that attend to an
encoder have no other use for it."""
QUERY, KEY = 0, 1
"""Indices of a HEADS phase's matrices."""


def showing(program: Program, config: ModelConfig, which: int, layers: Sequence[int]) -> Program:
    """Returns the program with another end: it gives what a product of some layers' attention to
    the encoder makes of each row, [rows, layers * heads * head_dim].

    program: all of a step, or what stores an encoder's rows.  which: QUERY or KEY.  layers:
    ascending.  The product is made twice, as its other result goes into the cache, or is
    overwritten.
    """
    size = config.num_heads * config.head_dim
    width, phases = len(layers) * size, []
    for phase in program.phases[:-1]:
        layer = _crossed_layer(phase.attention, config)
        matrix = phase.matrices[which] if phase.kind is PhaseKind.HEADS else None
        if matrix is not None and layer in layers:
            shown = product_into(matrix, KEPT)
            first = layers.index(layer) * size
            # Into a buffer of its own: nothing waits for it before the layer's end.
            part = replace(shown, width=width, part=True, first=first, waits=False)
            phases.append(replace(part, only_wanted=phase.only_wanted))
        phases.append(phase)
    end = Phase(kind=PhaseKind.ROWS, source=KEPT, width=width, waits=False)
    return Program((*phases, end), program.vocab)


def _crossed_layer(attention: Attention | None, config: ModelConfig) -> int:
    """The layer whose attention to the encoder that is; -1: it is another attention."""
    if attention is None or attention.chunk is not None:
        return -1
    return attention.layer - (config.num_layers if attention.through is not None else 0)


@dataclass(frozen=True)
class ShownHeads:
    """Runs two such programs over the cache of a third."""

    of_encoder: Forward
    of_decoder: Forward
    places: np.ndarray
    """[heads]: which of all heads of the layers that are shown each of them is."""
    heads: int
    """Number of heads of those layers, together."""
    head_dim: int

    @property
    def forwards(self) -> tuple[Forward, Forward]:
        return self.of_encoder, self.of_decoder

    @staticmethod
    def layers(heads: Sequence[tuple[int, int]]) -> list[int]:
        return sorted({layer for layer, _ in heads})

    @staticmethod
    def places_of(heads: Sequence[tuple[int, int]], per_layer: int) -> np.ndarray:
        """heads: (layer, head) of each."""
        layers = ShownHeads.layers(heads)
        return np.array([layers.index(layer) * per_layer + head for layer, head in heads])

    def queries(self, batch: Batch | None) -> Tensor:
        """batch: of the decoder's rows. Returns [rows, heads, head_dim]."""
        return self._shown(self.of_decoder, batch)

    def keys(self, batch: Batch | None) -> Tensor:
        """batch: of the encoder's rows. Returns [rows, heads, head_dim]."""
        return self._shown(self.of_encoder, batch)

    def _shown(self, forward: Forward, batch: Batch | None) -> Tensor:
        if batch is None:
            return torch.empty(0, len(self.places), self.head_dim)
        rows = in_torch(forward.logits(batch, np.arange(len(batch.tokens))))
        return rows.view(len(rows), self.heads, self.head_dim)[:, torch.from_numpy(self.places)]


def beside(decoder: Decoder, program: Program) -> Decoder:
    """Returns one that runs another program over the same cache."""
    return replace(decoder, program=program, beside=decoder)
