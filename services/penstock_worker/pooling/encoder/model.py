"""A bidirectional encoder in torch: a decoder's layers. Attention looks both ways, or back.

Sources: Devlin et al., "BERT", 2019; Liu et al., "RoBERTa", 2019; Sanh et al., "DistilBERT", 2019;
Song et al., "MPNet", 2020; Zhang et al., "mGTE", 2024 (rotary positions, gates); Clark et al.,
"ELECTRA", 2020, and Lan et al., "ALBERT", 2020 (small embeddings, shared layers); He et al.,
"DeBERTa", 2021 (disentangled attention).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from penstock.model.config import EncoderConfig
from penstock_kernels.reference.disentangled import Distances, attend_disentangled
from penstock_worker.adapters.interface import ProductAdapters
from penstock_worker.attention.interface import (
    PLAIN_RULE,
    HeadNorms,
    Rotation,
    ScoreRule,
    StepAttention,
)
from penstock_worker.models.decoder import DecoderModel, headless
from penstock_worker.pooling.encoder.convolution import ConvolvedLayer, EmbeddingConvolution
from penstock_worker.pooling.encoder.distances import DistanceTables, distance_biases
from penstock_worker.pooling.encoder.kernels import EncoderKernels
from penstock_worker.weights.weights import Weights


@dataclass(frozen=True)
class DisentangledAttention:
    """StepAttention within each input, of layers that have something to say about distances."""

    lengths: list[int]
    """Tokens of each input."""
    distances: list[Distances]
    """The distances that each layer counts."""
    seen: list[int] | None
    """How many tokens of each input its tokens see; None: all (`Inputs.seen`)."""

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rotation: Rotation | None,
        norms: HeadNorms | None = None,
        rule: ScoreRule = PLAIN_RULE,
    ) -> Tensor:
        if rotation is not None or norms is not None or rule != PLAIN_RULE:
            raise ValueError(
                "layers that have something to say about distances have no rotation, no norms of "
                f"queries and keys, and no such rule: {rule}"
            )
        own = self.distances[layer]
        return attend_disentangled(query, key, value, self.lengths, own, self.seen)


class EncoderModel:
    """Loads its weights when it is constructed, and is read-only from then on. It may be called
    from several threads if the kernels may be."""

    def __init__(
        self,
        config: EncoderConfig,
        weights: Weights,
        kernels: EncoderKernels,
        *,
        longest: int,
        adapters: ProductAdapters | None = None,
    ) -> None:
        """`kernels`: those for the device of the weights; `longest`: tokens of an input;
        `adapters`: those of rows. Raises UnsupportedModel for weights that don't fit the
        configuration."""
        self.config, layers = config, config.layers
        self._kernels = kernels
        self._bias = distance_biases(layers, weights, longest)
        self._distances: list[Distances] = []
        convolution: EmbeddingConvolution | None = None
        if layers.disentangled is not None:
            tables = DistanceTables(layers, layers.disentangled, weights, longest)
            self._distances = [tables.of_layer(number) for number in range(layers.num_layers)]
            if layers.disentangled.convolution:
                kind = layers.disentangled.convolution
                convolution = EmbeddingConvolution(kernels.ops, weights, layers, kind)
        self._model = DecoderModel(
            headless(layers), weights, longest, kernels.ops, adapters=adapters
        )
        if convolution is not None:
            self._model.layers[0] = ConvolvedLayer(self._model.layers[0], convolution)

    def hidden(
        self,
        tokens: np.ndarray,
        types: np.ndarray,
        lengths: list[int],
        layer_done: Callable[[], None],
        seen: list[int] | None = None,
    ) -> Tensor:
        """Returns the last layer's output, [rows, hidden], after the last norm if the model has
        one; rows are the tokens and, if the kernels need it, padding.

        `tokens`, `types`: [tokens] int64, one input after another.
        `lengths`: tokens of each input.
        `layer_done`: called after each layer.
        `seen`: see Inputs.
        """
        positions = np.concatenate([np.arange(length) for length in lengths])
        causal = self.config.causal
        step = self._kernels.lay_out(
            tokens, positions, types, lengths, self._bias, causal=causal, seen=seen
        )
        attention: StepAttention = step.attention
        if self._distances:
            attention = DisentangledAttention(lengths, self._distances, seen)
        rows = self._model.hidden(
            step.tokens, step.positions, attention, layer_done, types=step.types
        )
        return self._model.norm(rows)
