"""The phases of layers that aren't attention over keys and values of their own, then feed-forward,
and of what only some layers have.

In a model with several residuals, the one that layers compute is RESIDUAL meanwhile, so that both
halves of a layer are as in any other model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from penstock.model.config import ModelConfig
from penstock.model.layer_spec import StreamsSpec
from penstock_kernels.cpu.matrix import PackedMatrix
from penstock_kernels.cpu.operands import NormWeights
from penstock_kernels.cpu.program import Buffer, Phase, PhaseKind
from penstock_kernels.cpu.recurrent import RecurrentKind
from penstock_kernels.cpu.streams import CPUStreams
from penstock_worker.forward.cpu.gates import forms_of, product_into, residual_for
from penstock_worker.forward.cpu.layers import LayerPhases
from penstock_worker.forward.cpu.weights import (
    FurtherFeatures,
    LayerInputsWeights,
    LayerInputWeights,
    LayerWeights,
    RecurrentWeights,
    StreamEndsWeights,
    StreamLayerWeights,
)


@dataclass(frozen=True)
class BesideLayerPhases(LayerPhases):
    """A layer with a feed-forward and experts side by side. Both read the residual, each by norms
    of its own, and so does the router. No ranks share such a layer."""

    def _fed(self) -> Iterator[Phase]:
        norms, experts, weights = self.weights.beside, self.weights.experts, self.weights
        if norms is None or experts is None or weights.gate is None:
            raise ValueError("no program has such a layer of experts")
        yield self._input(norms.router, experts.router)
        yield self._scores(experts.router)
        yield self._input(norms.experts, *experts.gates, *experts.ups)
        yield self._route(experts)
        yield self._experts_up(experts)
        yield Phase(kind=PhaseKind.EXPERTS_DOWN, experts=self.experts)
        yield Phase(kind=PhaseKind.COMBINE, target=Buffer.RESULT, experts=self.experts, adds=False)
        yield self._over(PhaseKind.NORM, Buffer.RESULT, Buffer.RESULT, norms.experts_output)
        yield from self._dense()
        # Attention has no more use for MIXED.
        yield self._over(PhaseKind.ADD_NORM, Buffer.MIXED, Buffer.RESULT, norms.dense_output)
        last = weights.feed_forward_output_norm
        yield self._over(PhaseKind.ADD_NORM, Buffer.RESULT, Buffer.RESIDUAL, last)

    def _dense(self) -> Iterator[Phase]:
        """The feed-forward, as MIXED before its norm."""
        weights = self.weights
        if weights.gate is None or weights.up is None or weights.down is None:
            raise ValueError("the feed-forward beside experts is gated")
        yield self._input(weights.feed_forward_norm, weights.gate, weights.up)
        yield self._gated_up()
        yield product_into(weights.down, Buffer.MIXED, source=Buffer.INNER)

    def _over(
        self, kind: PhaseKind, source: Buffer, target: Buffer, norm: NormWeights | None
    ) -> Phase:
        width, scale = self.config.hidden_size, 1.0
        if kind is PhaseKind.ADD_NORM and target is Buffer.RESIDUAL:
            scale = self.spec.residual_multiplier
        return Phase(kind=kind, source=source, target=target, width=width, norm=norm, scale=scale)


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


@dataclass(frozen=True)
class RecurrentLayerPhases(LayerPhases):
    """A recurrent layer, which one rank has as a whole."""

    def _attention(self) -> Iterator[Phase]:
        matrices = [matrix for matrix, _ in self._recurrent.products]
        yield self._input(self.weights.attention_norm, *matrices)
        yield from self._features()
        yield from self._scanned(self.weights.output)

    def _features(self) -> Iterator[Phase]:
        """INPUT's features, as QUERIES, and what of them is convolved."""
        weights = self._recurrent
        for number, (matrix, first) in enumerate(weights.products):
            # Products of one input into columns of their own needn't wait for each other.
            last = number == len(weights.products) - 1
            yield replace(self._made_into(matrix, first), waits=last)
        convolved: list[Phase] = []
        if weights.layer.kind is not RecurrentKind.SHORT_CONV:
            convolved.append(
                Phase(kind=PhaseKind.CONVOLVE, source=Buffer.QUERIES, recurrent=weights.layer)
            )
        further = self._further(weights.further)
        yield from chain(convolved, further) if weights.of_convolved else chain(further, convolved)

    def _further(self, products: Sequence[FurtherFeatures]) -> Iterator[Phase]:
        for each in products:
            yield Phase(
                kind=PhaseKind.MAKE_INPUT,
                source=Buffer.QUERIES,
                target=Buffer.INPUT,
                width=each.matrix.struct.inputs,
                first=each.source,
                norm=each.norm,
                forms=forms_of(each.matrix),
                waits=False,
            )
            yield self._made_into(each.matrix, each.first)

    def _made_into(self, matrix: PackedMatrix, first: int) -> Phase:
        """The features that a matrix makes of INPUT, from column `first` on."""
        return Phase(
            kind=PhaseKind.PRODUCT,
            source=Buffer.INPUT,
            target=Buffer.QUERIES,
            matrices=(matrix,),
            adds=False,
            part=True,
            first=first,
            width=self._recurrent.features,
        )

    def _scanned(self, reader: PackedMatrix | None) -> Iterator[Phase]:
        """The scan, and its result as the input of the product by `reader`."""
        layer = self._recurrent.layer
        yield Phase(
            kind=PhaseKind.SCAN, source=Buffer.QUERIES, target=Buffer.MIXED, recurrent=layer
        )
        yield Phase(
            kind=PhaseKind.MAKE_INPUT,
            source=Buffer.MIXED,
            target=Buffer.INPUT,
            width=layer.width,
            recurrent=layer,
            forms=forms_of(reader),
            waits=False,
        )

    @property
    def _recurrent(self) -> RecurrentWeights:
        if self.weights.recurrent is None:
            raise ValueError("a layer that isn't recurrent has no such weights")
        return self.weights.recurrent


@dataclass(frozen=True)
class AttentionBesidePhases(RecurrentLayerPhases):
    """A layer whose attention and recurrence read the same normed residual, which is INPUT until
    both have taken what they need. What attention gives is in MIXED until it is multiplied, what
    the scan gives after that."""

    def phases(self) -> Iterator[Phase]:
        weights, output = self.weights, self.weights.recurrent_output
        if self.spec.order != "pre" or self.spec.halves != "both" or output is None:
            raise ValueError("no program has such a layer of attention and a recurrence")
        features = [matrix for matrix, _ in self._recurrent.products]
        yield self._input(weights.attention_norm, *self._heads_matrices(), *features)
        yield self._heads()
        yield from self._placed()
        attend, *made_input = self._attended()
        yield attend
        yield from self._features()
        yield from made_input
        yield from self._added([self._output()], None)
        yield from self._scanned(output)
        product = Phase(kind=PhaseKind.PRODUCT, source=Buffer.INPUT, matrices=(output,))
        yield from self._added([product], None)
        yield from self._fed()


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
        """The path parallel to attention, and the sum of both. The path begins with the normalised
        residual, which is computed once more."""
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


# Inputs that layers have of their own, and what else follows a layer.


def inputs_of_layers(config: ModelConfig, weights: LayerInputsWeights) -> Iterator[Phase]:
    """Phases after the embedding that make the inputs of all layers."""
    hidden = config.hidden_size
    yield residual_for(weights.projection, width=hidden)
    yield product_into(weights.projection, Buffer.LAYER_INPUTS, scale=hidden**-0.5)
    yield Phase(
        kind=PhaseKind.INPUTS_OF_LAYERS,
        target=Buffer.LAYER_INPUTS,
        matrices=(weights.table,),
        width=weights.size,
        norm=weights.norm,
        scale=weights.size**0.5,
    )


def made_of_own(config: ModelConfig, number: int, weights: LayerInputWeights) -> Iterator[Phase]:
    """What layer `number` makes of the residual and its own input, as RESULT before the norm."""
    yield residual_for(weights.gate, width=config.hidden_size)
    yield Phase(
        kind=PhaseKind.GATE_BY,
        source=Buffer.INPUT,
        target=Buffer.INNER,
        beside=Buffer.LAYER_INPUTS,
        first=number * weights.gate.struct.outputs,
        matrices=(weights.gate,),
        activation=config.layer(number).feed_forward.activation,
        forms=forms_of(weights.projection),
    )
    yield product_into(weights.projection, Buffer.RESULT, source=Buffer.INNER)


def finished(
    phases: Iterator[Phase], config: ModelConfig, number: int, weights: LayerWeights
) -> Iterator[Phase]:
    """The phases of layer `number`, and after them what the layer adds and multiplies at its
    end."""
    yield from phases
    own, width = weights.own_input, config.hidden_size
    if own is not None:
        yield from made_of_own(config, number, own)
        added = Phase(kind=PhaseKind.ADD_NORM, source=Buffer.RESULT, width=width, norm=own.norm)
        if weights.streams is not None:
            streams = weights.streams.coefficients
            added = replace(added, kind=PhaseKind.ADD_TO_OTHERS, streams=streams)
        yield added
    if weights.output_scale != 1.0:
        yield Phase(kind=PhaseKind.SCALE, width=width, scale=weights.output_scale)
