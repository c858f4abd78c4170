"""Layers that are computed several times, and the norm of the residual between these times."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from penstock_worker.layers.attention import SelfAttention
from penstock_worker.layers.decoder_layer import DecoderLayer, SummedLayer
from penstock_worker.layers.parts import Norm, Parts
from penstock_worker.layers.per_layer_inputs import Layer
from penstock_worker.layers.step import Step

if TYPE_CHECKING:
    from torch import Tensor


def again(layer: Layer, number: int) -> DecoderLayer | SummedLayer:
    """Returns a layer with the weights of `layer`, and the KV cache of layer `number`, counted from
    the rank's first. Raises TypeError for a layer of another kind."""
    kinds = (DecoderLayer, SummedLayer)
    if not isinstance(layer, kinds) or not isinstance(layer.attention, SelfAttention):
        raise TypeError(f"a {type(layer).__name__} can't be computed several times")
    other = copy(layer)
    other.attention = layer.attention.at(number)
    return other


class RenormedLayer:
    """A Layer that reads the model's last norm of the residual, which takes the residual's
    place."""

    def __init__(self, norm: Norm, inner: Layer) -> None:
        self._norm = norm
        self._inner = inner

    def __call__(self, update: Tensor | None, residual: Tensor, step: Step) -> Tensor | None:
        if update is not None:
            residual.add_(update)
        residual.copy_(self._norm(residual))
        return self._inner(None, residual, step)


def renormed(parts: Parts, layer: int, inner: Layer) -> Layer:
    """Returns layer number `layer` with the norm in front of it, where the model has it there."""
    if not parts.config.layer(layer).residual_norm:
        return inner
    return RenormedLayer(parts.norm("norm", parts.config.hidden_size), inner)
