"""A layer with what some models have after both of its halves."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from penstock_worker.layers.parts import Parts
from penstock_worker.layers.per_layer_inputs import LayerInput
from penstock_worker.layers.step import Step


class Layer(Protocol):
    """A layer whose result is residual + the tensor it returns, or the residual alone if it returns
    None. `update` is what the layer before returned. Modifies `residual`."""

    def __call__(self, update: Tensor | None, residual: Tensor, step: Step) -> Tensor | None: ...


class FinishedLayer:
    """Adds what the layer makes of its own input and what a tower's tap gives, and multiplies the
    sum."""

    def __init__(
        self,
        number: int,
        inner: Layer,
        own: LayerInput | None,
        scale: Tensor | None,
        *,
        tapped: bool,
    ) -> None:
        """`number`: the layer's, among all of the model. `scale` is [1]. `tapped`: whether there is
        a tap for it."""
        self._number = number
        self._inner = inner
        self._own = own
        self._scale = scale
        self._tapped = tapped

    def __call__(self, update: Tensor | None, residual: Tensor, step: Step) -> None:
        """Computes the layer as Layer does, but leaves its whole result in `residual`."""
        last = self._inner(update, residual, step)
        if last is not None:
            residual.add_(last)
        if self._own is not None and step.inputs is not None:
            residual.add_(self._own(residual, step.inputs[:, self._number]))
        if self._tapped and step.media is not None:
            step.media.add_to(residual, self._number)
        if self._scale is not None:
            residual.mul_(self._scale)


def finished(parts: Parts, layer: int, inner: Layer) -> Layer:
    """Returns layer number `layer` with what its model has after it."""
    config = parts.config
    scaled, inputs = config.layer(layer).output_scale, config.per_layer_inputs
    # Also where a step has no pictures: text is rounded alike in any company.
    tapped = config.vision is not None and layer < len(config.vision.taps)
    if config.streams is not None or (inputs is None and not scaled and not tapped):
        return inner  # Several residuals have a rule of their own for it.
    scale = None
    if scaled:
        scale = parts.weights.take(f"layers.{layer}.output_scale.weight", (1,))
    own = None if inputs is None else LayerInput.load(parts, layer, inputs)
    return FinishedLayer(layer, inner, own, scale, tapped=tapped)
