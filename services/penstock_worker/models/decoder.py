"""A decoder-only transformer: embedding, layers, norm, output head. Families give the layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor

from penstock.model_config import ModelConfig
from penstock_worker.attention.interface import StepAttention
from penstock_worker.layers.decoder_layer import DecoderLayer
from penstock_worker.layers.ops import Ops
from penstock_worker.layers.parts import Parts
from penstock_worker.layers.reference_ops import REFERENCE
from penstock_worker.layers.rotary import Rotary
from penstock_worker.layers.step import Step
from penstock_worker.weights import Weights

EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"


class DecoderModel(ABC):
    """Takes its weights when it is made; read-only from then on.

    positions: how many token positions may occur.  ops: what computes.  Raises
    UnsupportedModel for weights that don't fit the configuration.
    """

    def __init__(
        self, config: ModelConfig, weights: Weights, positions: int, ops: Ops = REFERENCE
    ) -> None:
        self.config = config
        parts = Parts(config, weights, ops)
        shape = (config.vocab_size, config.hidden_size)
        self.embedding = weights.take(EMBEDDING, shape)
        self.rotary = Rotary.load(config, weights, positions)
        self.layers = [self.load_layer(parts, layer) for layer in range(config.num_layers)]
        self.norm = parts.norm("norm", config.hidden_size)
        head = self.embedding
        if config.tie_word_embeddings:
            weights.ignore(HEAD)
        else:
            head = weights.take(HEAD, shape)
        self.head = ops.head(head)
        weights.finish()

    @abstractmethod
    def load_layer(self, parts: Parts, layer: int) -> DecoderLayer:
        """The family's layer number `layer`."""

    def hidden(
        self,
        tokens: Tensor,
        positions: Tensor,
        attention: StepAttention,
        layer_done: Callable[[], None],
    ) -> Tensor:
        """tokens, positions: [rows] int64 -> the last layer's output [rows, hidden].

        attention: of this step; its cache gets the rows' keys and values.  layer_done: called
        after each layer, so that others can see progress.
        """
        step = Step(self.rotary.at(positions), attention)
        residual, update = self.embedding[tokens], None
        for layer in self.layers:
            update = layer(update, residual, step)
            layer_done()
        return residual if update is None else residual + update

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, vocab], float32."""
        return self.head(self.norm(hidden)).float()
