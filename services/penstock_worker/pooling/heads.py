"""Classification heads over one vector of an input: a row product each, so batches don't matter."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from penstock.model_config import EncoderConfig
from penstock_worker.weights import Weights

Head = Callable[[Tensor], Tensor]
"""[hidden] -> [labels], float32."""


def encoder_head(config: EncoderConfig, weights: Weights, labels: int) -> Head:
    """As transformers has it for the family. Raises UnsupportedModel for missing tensors."""
    size = config.hidden_size
    match config.family:
        case "bert":
            inner, last, bend = "pooler.dense", "classifier", torch.tanh
        case "distilbert":
            inner, last, bend = "pre_classifier", "classifier", torch.relu
        case _:
            inner, last, bend = "classifier.dense", "classifier.out_proj", torch.tanh
    first = _dense(weights, inner, size, size)
    second = _dense(weights, last, labels, size)
    return lambda vector: second(bend(first(vector)))


def decoder_head(weights: Weights, labels: int, hidden: int) -> Head:
    """One matrix, without a bias."""
    matrix = weights.take("score.weight", (labels, hidden), torch.float32)
    return lambda vector: matrix @ vector


def _dense(weights: Weights, name: str, outputs: int, inputs: int) -> Head:
    matrix = weights.take(f"{name}.weight", (outputs, inputs), torch.float32)
    bias = weights.take(f"{name}.bias", (outputs,), torch.float32)
    return lambda vector: matrix @ vector + bias
