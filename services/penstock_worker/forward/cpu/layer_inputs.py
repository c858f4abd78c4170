"""Phases of the inputs that layers have of their own, and of what else follows a layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from penstock.model.config import ModelConfig
from penstock_kernels.cpu.program import Buffer, Phase, PhaseKind
from penstock_worker.forward.cpu.gates import forms_of, product_into, residual_for
from penstock_worker.forward.cpu.weights import LayerInputsWeights, LayerInputWeights, LayerWeights


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
