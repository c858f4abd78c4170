"""Dense layers that an input's vector goes through (sentence-transformers' Dense)."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.model.pooling_config import DenseLayer
from penstock_worker.pooling.heads import Head
from penstock_worker.weights.files import safetensors_tensors
from penstock_worker.weights.weights import Weights


def load_dense(layers: tuple[DenseLayer, ...]) -> Head:
    """Reads the layers. Returns what maps [size of the first's inputs] to [the last's outputs], on
    the host, in float32 and for one input at a time. Raises UnsupportedModel or ModelNotFound."""
    steps = [_layer(layer) for layer in layers]

    def through(vector: Tensor) -> Tensor:
        for step in steps:
            vector = step(vector)
        return vector

    return through


def _layer(layer: DenseLayer) -> Head:
    weights = Weights(safetensors_tensors((layer.file,), lambda name: name), torch.float32)
    matrix = weights.take("linear.weight", (layer.outputs, layer.inputs))
    bias = weights.take("linear.bias", (layer.outputs,)) if layer.bias else None
    weights.finish()

    def step(vector: Tensor) -> Tensor:
        out = matrix @ vector if bias is None else matrix @ vector + bias
        return torch.tanh(out) if layer.activation == "tanh" else out

    return step
