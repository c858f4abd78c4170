"""The phases of models with several residuals. The one that layers compute is RESIDUAL meanwhile,
so that both halves of a layer are as in any other model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from penstock.model.config import ModelConfig
from penstock.model.layer_spec import StreamsSpec
from penstock_kernels.cpu.program import Buffer, Phase, PhaseKind
from penstock_kernels.cpu.streams import CPUStreams
from penstock_worker.forward.cpu.gates import forms_of, product_into
from penstock_worker.forward.cpu.layers import LayerPhases
from penstock_worker.forward.cpu.weights import StreamEndsWeights, StreamLayerWeights


@dataclass(frozen=True)
class StreamLayerPhases(LayerPhases):
    """Makes the phases of a layer with several residual streams, which tensor-parallel ranks can't
    share."""

    def phases(self) -> Iterator[Phase]:
        weights, own = self.weights, self._own()
        predicted = Phase(
            kind=PhaseKind.PREDICT,
            target=Buffer.RESIDUAL,
            width=self.config.hidden_size,
            streams=own.coefficients,
            norm=own.router_norm,
        )
        yield predicted
        yield self._input(weights.attention_norm, *self._heads_matrices(), own.path_down)
        # Products of the same input into buffers of their own needn't wait for each other.
        yield self._heads(waits=False)
        yield product_into(own.path_down, Buffer.SCORES)
        yield from self._placed()
        yield from self._attended()
        yield replace(self._output(), target=Buffer.RESULT, adds=False)
        yield from self._joined(own)
        yield from self._fed()
        yield replace(predicted, kind=PhaseKind.CORRECT)

    def _own(self) -> StreamLayerWeights:
        if self.weights.streams is None or self.spec.order != "sandwich":
            raise ValueError("no program has such a layer of several residuals")
        return self.weights.streams

    def _joined(self, own: StreamLayerWeights) -> Iterator[Phase]:
        """The path beside attention, and the sum of both. The path begins with the normalised
        residual, which is made once more."""
        hidden = self.config.hidden_size
        yield Phase(
            kind=PhaseKind.MAKE_INPUT,
            source=Buffer.SCORES,
            target=Buffer.INPUT,
            width=own.path_down.struct.outputs,
            forms=forms_of(own.path_up),
            waits=False,
        )
        yield product_into(own.path_up, Buffer.MIXED)
        yield Phase(
            kind=PhaseKind.JOIN_PATH,
            source=Buffer.RESULT,
            beside=Buffer.MIXED,
            target=Buffer.RESIDUAL,
            width=hidden,
            norm=self.weights.attention_output_norm,
            other_norm=self.weights.attention_norm,
            third_norm=own.path_norm,
            scale=math.sqrt(0.5),
        )


def begun(config: ModelConfig, spec: StreamsSpec, weights: StreamEndsWeights) -> Iterator[Phase]:
    """Phases after the embedding: all streams are made of it."""
    hidden, streams = config.hidden_size, _streams(config, spec)
    yield Phase(
        kind=PhaseKind.MAKE_INPUT,
        target=Buffer.INPUT,
        width=hidden,
        forms=forms_of(*weights.beginnings),
        waits=False,
    )
    *others, last = (
        replace(
            product_into(matrix, Buffer.STREAMS),
            part=True,
            first=number * streams.stride,
            width=streams.whole,
            waits=False,
        )
        for number, matrix in enumerate(weights.beginnings, 1)
    )
    yield from others
    yield replace(last, waits=True)
    yield Phase(kind=PhaseKind.BEGIN_STREAMS, width=hidden, streams=streams)


def ended(config: ModelConfig, spec: StreamsSpec, weights: StreamEndsWeights) -> Iterator[Phase]:
    """Phases after the last layer: RESIDUAL is the mean of what is made of all streams."""
    hidden, streams = config.hidden_size, _streams(config, spec)
    for number, matrix in enumerate(weights.endings, 1):
        yield Phase(
            kind=PhaseKind.MAKE_INPUT,
            source=Buffer.STREAMS,
            target=Buffer.INPUT,
            width=hidden,
            first=number * streams.stride,
            forms=forms_of(matrix),
            waits=False,
        )
        yield product_into(matrix, Buffer.RESULT)
        yield Phase(
            kind=PhaseKind.END_STREAM,
            source=Buffer.RESULT,
            target=Buffer.RESIDUAL,
            width=hidden,
            streams=streams,
            adds=number > 1,
            scale=1.0 if number < len(weights.endings) else 1.0 / streams.count,
        )


def _streams(config: ModelConfig, spec: StreamsSpec) -> CPUStreams:
    return CPUStreams(count=spec.count, active=spec.active, width=config.hidden_size)
