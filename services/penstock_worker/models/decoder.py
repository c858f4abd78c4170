"""A decoder-only transformer: embedding, layers, norm, output head. Families give the layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor

from penstock.model_config import ModelConfig
from penstock_worker.attention.interface import StepAttention
from penstock_worker.layers.decoder_layer import DecoderLayer
from penstock_worker.layers.linear import Linear, RMSNorm
from penstock_worker.layers.rotary import Rotary
from penstock_worker.layers.step import Step
from penstock_worker.weights import Weights

EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"


class DecoderModel(ABC):
    """Takes its weights when it is made; read-only from then on.

    positions: how many token positions may occur.  Raises UnsupportedModel for weights that don't
    fit the configuration.
    """

    def __init__(self, config: ModelConfig, weights: Weights, positions: int) -> None:
        self.config = config
        shape = (config.vocab_size, config.hidden_size)
        self.embedding = weights.take(EMBEDDING, shape)
        self.rotary = Rotary.load(config, weights, positions)
        self.layers = [self.load_layer(weights, layer) for layer in range(config.num_layers)]
        self.norm = RMSNorm.load(weights, "norm", config.hidden_size, config.rms_norm_eps)
        if config.tie_word_embeddings:
            weights.ignore(HEAD)
            self.head = Linear(self.embedding)
        else:
            self.head = Linear(weights.take(HEAD, shape))
        weights.finish()

    @abstractmethod
    def load_layer(self, weights: Weights, layer: int) -> DecoderLayer:
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
        step = Step(*self.rotary.at(positions), attention)
        hidden = self.embedding[tokens]
        for layer in self.layers:
            hidden = layer(hidden, step)
            layer_done()
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, vocab], float32."""
        return self.head(self.norm(hidden)).float()
