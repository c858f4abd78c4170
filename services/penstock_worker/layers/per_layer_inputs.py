"""An input of each layer's own for each token (Gemma team, "Gemma 3n", 2025)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from penstock.model.layer_spec import PerLayerInputsSpec
from penstock_worker.layers.parts import Norm, Ops, Parts
from penstock_worker.layers.step import Step
from penstock_worker.quantisation.interface import Product, Table

if TYPE_CHECKING:
    from torch import Tensor

TABLE = "embed_tokens_per_layer.weight"


class PerLayerInputs:
    """Makes the inputs of all layers: of a row of a table, and of the token's embedding."""

    def __init__(
        self, spec: PerLayerInputsSpec, table: Table, projection: Product, norm: Norm, hidden: int
    ) -> None:
        """`table` has [layers * size] numbers for each token id; `projection` maps [rows, hidden]
        to as many; `norm` is over a layer's."""
        self._spec = spec
        self._table = table
        self._projection = projection
        self._norm = norm
        self._hidden = hidden

    def __call__(self, tokens: Tensor, embedded: Tensor) -> Tensor:
        """Maps token ids, [rows] int64, and what the first layer gets, [rows, hidden], to [rows,
        layers, size]."""
        spec = self._spec
        rows = self._table(torch.where(tokens < spec.vocab_size, tokens, 0))
        # In the rows' dtype, as the models were trained.
        own = rows * rows.new_full((), spec.size**0.5)
        projected = (self._projection(embedded) * self._hidden**-0.5).unflatten(-1, (-1, spec.size))
        return (self._norm(projected) + own.view(projected.shape)) * 2**-0.5

    @staticmethod
    def load(parts: Parts, spec: PerLayerInputsSpec) -> PerLayerInputs:
        config = parts.config
        numbers = config.num_layers * spec.size
        return PerLayerInputs(
            spec,
            parts.ops.table(parts.weights.take_matrix([(TABLE, (spec.vocab_size, numbers))])),
            parts.product(
                [("per_layer_model_projection", numbers)], config.hidden_size, bias=False
            ),
            parts.norm("per_layer_projection_norm", spec.size),
            config.hidden_size,
        )


class LayerInput:
    """What a layer makes of its own input: it is weighed by the residual, and projected."""

    def __init__(
        self, ops: Ops, activation: str, gate: Product, projection: Product, norm: Norm
    ) -> None:
        """`gate` maps [rows, hidden] to [rows, size], `projection` back; `norm` is after it."""
        self._ops = ops
        self._activation = activation
        self._gate = gate
        self._projection = projection
        self._norm = norm

    def __call__(self, hidden: Tensor, own: Tensor) -> Tensor:
        """Maps [rows, hidden] and the layer's input, [rows, size], to [rows, hidden]."""
        both = torch.cat((self._gate(hidden), own), -1)
        weighed = self._ops.activate(both, self._activation, gated=True)
        return self._norm(self._projection(weighed))

    @staticmethod
    def load(parts: Parts, layer: int, spec: PerLayerInputsSpec) -> LayerInput:
        prefix, hidden = f"layers.{layer}", parts.config.hidden_size
        return LayerInput(
            parts.ops,
            parts.config.layer(layer).feed_forward.activation,
            parts.product([(f"{prefix}.per_layer_input_gate", spec.size)], hidden, bias=False),
            parts.product([(f"{prefix}.per_layer_projection", hidden)], spec.size, bias=False),
            parts.norm(f"{prefix}.per_layer_input_norm", hidden),
        )


# A layer with what some models have after both of its halves.


class Layer(Protocol):
    """A layer whose result is residual + the tensor it returns, or the residual alone if it returns
    None. `update` is what the layer before returned. Modifies `residual`."""

    def __call__(self, update: Tensor | None, residual: Tensor, step: Step) -> Tensor | None: ...


class FinishedLayer:
    """Adds what the layer makes of its own input and a level of the tower's DeepStack, and
    multiplies the sum."""

    def __init__(
        self,
        number: int,
        inner: Layer,
        own: LayerInput | None,
        scale: Tensor | None,
        *,
        level: int | None,
    ) -> None:
        """`number`: the layer's, among all of the model. `scale` is [1]. `level`: of DeepStack;
        None: there is none for it."""
        self._number = number
        self._inner = inner
        self._own = own
        self._scale = scale
        self._level = level

    def __call__(self, update: Tensor | None, residual: Tensor, step: Step) -> None:
        """Computes the layer as Layer does, but leaves its whole result in `residual`."""
        last = self._inner(update, residual, step)
        if last is not None:
            residual.add_(last)
        if self._own is not None and step.inputs is not None:
            residual.add_(self._own(residual, step.inputs[:, self._number]))
        if self._level is not None and step.media is not None:
            step.media.add_to(residual, self._level)
        if self._scale is not None:
            residual.mul_(self._scale)


def finished(parts: Parts, layer: int, inner: Layer) -> Layer:
    """Returns layer number `layer` with what its model has after it."""
    config = parts.config
    scaled, inputs = config.layer(layer).output_scale, config.per_layer_inputs
    # Also where a step has no pictures: text is rounded alike in any company.
    layers = () if config.vision is None else config.vision.added_behind
    level = layers.index(layer) if layer in layers else None
    if config.streams is not None or (inputs is None and not scaled and level is None):
        return inner  # Several residuals have a rule of their own for it.
    scale = None
    if scaled:
        scale = parts.weights.take(f"layers.{layer}.output_scale.weight", (1,))
    own = None if inputs is None else LayerInput.load(parts, layer, inputs)
    return FinishedLayer(layer, inner, own, scale, level=level)
