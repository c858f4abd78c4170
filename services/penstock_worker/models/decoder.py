"""A decoder-only transformer: embedding, layers, norm, output head. Families give the layers.

Of several stages, the first has the embedding and the last norm and head; each takes the hidden
states of the one before and hands its own on.  With tied embeddings the last has a copy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from penstock.model_config import ModelConfig
from penstock_worker.attention.interface import StepAttention
from penstock_worker.layers.decoder_layer import DecoderLayer
from penstock_worker.layers.ops import Ops
from penstock_worker.layers.parts import Parts
from penstock_worker.layers.reference_ops import REFERENCE
from penstock_worker.layers.rotary import Rotary
from penstock_worker.layers.step import Step
from penstock_worker.layers.vocabulary import Head, TokenEmbedding
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.parallel.shard import shard_of
from penstock_worker.weights import Weights

EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"


class DecoderModel(ABC):
    """Takes its weights when it is made; read-only from then on.

    config, weights: of the whole model.  positions: how many token positions may occur.  ops: what
    computes.  ranks: with whom; the model has this one's part.  Raises UnsupportedModel for
    weights that don't fit the configuration, StartupError for what can't be dealt out.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        positions: int,
        ops: Ops = REFERENCE,
        ranks: Ranks = ALONE,
    ) -> None:
        self.config = config
        self.dtype = weights.dtype
        self.shard = shard_of(config, ranks.place)
        self._ranks = ranks
        weights = weights.cut_to(self.shard)
        parts = Parts(config, weights, ops, self.shard, ranks)
        self.rotary = Rotary.load(config, weights, positions)
        self.layers = [self.load_layer(parts, layer) for layer in self.shard.layers]
        self._load_ends(parts)
        weights.finish()

    def _load_ends(self, parts: Parts) -> None:
        config, weights, place = self.config, parts.weights, self._ranks.place
        shape = (config.vocab_size, config.hidden_size)
        tied = config.tie_word_embeddings
        if place.first or (place.last and tied):
            self.embedding = weights.take_matrix([(EMBEDDING, shape)])
        if place.first:
            self._embed = TokenEmbedding(parts.ops.table(self.embedding), self.shard, self._ranks)
        if tied:
            weights.ignore(HEAD)
        if place.last:
            self.norm = parts.norm("norm", config.hidden_size)
            own = self.embedding if tied else weights.take_matrix([(HEAD, shape)])
            self.head = parts.ops.head(own)
            self._logits = Head(self.head, self.shard, self._ranks)

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
        before = self.receive(tokens.shape[0])
        hidden = self.through_layers(tokens, before, positions, attention, layer_done)
        self.send(hidden)
        return hidden

    def receive(self, rows: int) -> Tensor | None:
        """What the stage before gives: [rows, hidden], which the layers may change; None in the
        first stage."""
        if self._ranks.place.first:
            return None
        return self._ranks.receive((rows, self.config.hidden_size), self.dtype)

    def through_layers(
        self,
        tokens: Tensor,
        before: Tensor | None,
        positions: Tensor,
        attention: StepAttention,
        layer_done: Callable[[], None],
    ) -> Tensor:
        """`hidden` without a word to other stages. before: what was received."""
        step = Step(self.rotary.at(positions), attention)
        residual, update = self._embed(tokens) if before is None else before, None
        for layer in self.layers:
            update = layer(update, residual, step)
            layer_done()
        return residual if update is None else residual + update

    def send(self, hidden: Tensor) -> None:
        """To the stage after, if there is one. hidden must not be changed any more."""
        if not self._ranks.place.last:
            self._ranks.send(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, vocab], float32; before the last stage none: [0, vocab]."""
        if not self._ranks.place.last:
            return hidden.new_empty(0, self.config.vocab_size, dtype=torch.float32)
        return self._logits(self.norm(hidden))
