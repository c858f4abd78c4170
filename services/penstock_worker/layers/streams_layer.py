"""A layer of a model with several residuals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from penstock.model.layer_spec import StreamsSpec
from penstock_worker.layers.parts import (
    Norm,
    Parts,
)
from penstock_worker.layers.per_layer_inputs import LayerInput
from penstock_worker.layers.step import Step
from penstock_worker.layers.streams import LowRankPath, StreamUpdate

if TYPE_CHECKING:
    from torch import Tensor


Attention: TypeAlias = "Callable[[Tensor, Step], Tensor]"
Network: TypeAlias = "Callable[[Tensor], Tensor]"


class StreamsLayer:
    """Computes one stream, and corrects the prediction of all by it. The other streams get what the
    layer makes of its own input."""

    def __init__(
        self,
        number: int,
        spec: StreamsSpec,
        update: StreamUpdate,
        path: LowRankPath,
        attention: Attention,
        feed_forward: Network,
        norms: Sequence[Norm],
        own: LayerInput | None,
        scale: Tensor | None,
    ) -> None:
        """`number`: the layer's, among all of the model. `norms`: before and after attention, then
        the feed-forward's. `scale` is [hidden]."""
        self._number = number
        self._active = spec.active
        self._update = update
        self._path = path
        self._attention = attention
        self._feed_forward = feed_forward
        self._norms = norms
        self._own = own
        self._scale = scale

    def __call__(self, update: Tensor | None, residual: Tensor, step: Step) -> None:
        """Computes a Layer's rows of a residual [streams, rows, hidden]. There is no update."""
        predicted = self._update.predict(residual)
        computed = self._computed(predicted[self._active], step)
        residual.copy_(self._update.correct(predicted, computed))
        if self._own is not None and step.inputs is not None:
            first = residual[self._active]
            scaled = first if self._scale is None else first * self._scale
            residual[1:] += self._own(scaled, step.inputs[:, self._number])

    def _computed(self, stream: Tensor, step: Step) -> Tensor:
        """Returns what attention and feed-forward make of one stream, [rows, hidden]."""
        before, behind, inner_before, inner_behind = self._norms
        normed = before(stream)
        mixed = stream + behind(self._attention(normed, step))
        stream = (mixed + self._path(normed)) / math.sqrt(2.0)
        return stream + inner_behind(self._feed_forward(inner_before(stream)))


def load_streams_layer(
    parts: Parts,
    layer: int,
    spec: StreamsSpec,
    attention: Attention,
    feed_forward: Network,
    norms: Sequence[Norm],
) -> StreamsLayer:
    """Returns layer number `layer` of the model. Arguments are as StreamsLayer's."""
    config = parts.config
    inputs, scale, name = config.per_layer_inputs, None, f"layers.{layer}.altup.output_scale.weight"
    if spec.scaled:
        scale = parts.weights.take(name, (config.hidden_size,))
    else:
        parts.weights.ignore(name)
    return StreamsLayer(
        layer,
        spec,
        StreamUpdate.load(parts, layer, spec),
        LowRankPath.load(parts, layer, spec),
        attention,
        feed_forward,
        norms,
        None if inputs is None else LayerInput.load(parts, layer, inputs),
        scale,
    )
