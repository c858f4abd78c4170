"""A transformer's decoder: embedding, layers, norm, output head, as its configuration says.

With pipeline parallelism, the first stage has the embedding, and the last has the norm and the
head. Each stage receives the hidden states of the one before and sends its own on. With tied
embeddings, the last stage has a copy of the embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import torch

from penstock.model.config import ModelConfig
from penstock_worker.adapters.interface import ProductAdapters
from penstock_worker.attention.encoded import NOTHING_ENCODED, EncodedAttention
from penstock_worker.attention.interface import StepAttention
from penstock_worker.layers.attention import CrossLayer
from penstock_worker.layers.decoder_layer import load_layer
from penstock_worker.layers.hyper_connections import HyperEnds
from penstock_worker.layers.parts import NO_NORM, DecoderOps, Norm, Parts
from penstock_worker.layers.per_layer_inputs import Layer, PerLayerInputs, finished
from penstock_worker.layers.picture_layer import PictureLayer
from penstock_worker.layers.recurrent.interface import NO_STATES, StepStates
from penstock_worker.layers.reference_ops import REFERENCE
from penstock_worker.layers.repeated import again, renormed
from penstock_worker.layers.rotary import Rotary
from penstock_worker.layers.step import RowMedia, Step
from penstock_worker.layers.streams import Streams
from penstock_worker.layers.vocabulary import Head, LogitsRule, TokenEmbedding
from penstock_worker.models.aux_hidden import AuxHidden
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.parallel.shard import shard_of
from penstock_worker.weights.weights import Weights

if TYPE_CHECKING:
    from torch import Tensor

EMBEDDING = "embed_tokens.weight"
POSITIONS = "embed_positions.weight"
TYPES = "embed_types.weight"
PROJECTION = "embedding_projection"
HEAD = "lm_head.weight"
HEAD_BIAS = "lm_head.bias"


def headless(config: ModelConfig) -> ModelConfig:
    """The output head is not computed. Declared as tied to the embedding, it isn't read either."""
    return msgspec.structs.replace(config, tie_word_embeddings=True, head_bias=False)


class DecoderModel:
    """Loads its weights when it is constructed, and is read-only from then on."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        positions: int,
        ops: DecoderOps = REFERENCE,
        ranks: Ranks = ALONE,
        adapters: ProductAdapters | None = None,
        aux_hidden: AuxHidden | None = None,
    ) -> None:
        """Loads this rank's part of the model.

        `config`, `weights`: of the whole model.
        `positions`: number of token positions that may occur.
        `ops`: the kernels.
        `ranks`: the ranks that the model is distributed over.
        `adapters`: those of the rows of a batch; None if there never are any.
        `aux_hidden`: get residuals of each pass.

        Raises UnsupportedModel for weights that don't fit the configuration, and StartupError for a
        model that can't be sharded so.
        """
        self.config = config
        self.dtype = weights.dtype
        self.shard = shard_of(config, ranks.place)
        self._ranks = ranks
        self._aux_hidden = aux_hidden
        weights = weights.cut_to(self.shard)
        parts = Parts(config, weights, ops, self.shard, ranks, adapters)
        self.rotaries = [Rotary.load(spec, weights, positions) for spec in config.ropes]
        self.layers: list[Layer] = []
        self._load_layers(parts)
        self._load_ends(parts)
        weights.finish()

    def _load_layers(self, parts: Parts) -> None:
        loaded: dict[int, Layer] = {}
        for number in self.shard.layers:
            repeated = self.config.layer(number).repeats
            if repeated is None:
                layer = finished(parts, number, load_layer(parts, number))
            else:
                layer = again(loaded[repeated], number - self.shard.layers.start)
            loaded[number] = layer
            self.layers.append(renormed(parts, number, layer))

    def _load_ends(self, parts: Parts) -> None:
        config, weights, place = self.config, parts.weights, self._ranks.place
        shape = (config.vocab_size, config.row_of_embedding)
        tied = config.tie_word_embeddings
        if place.first or (place.last and tied):
            self.embedding = weights.take_matrix([(EMBEDDING, shape)])
        if place.first:
            words = parts.ops.table(self.embedding)
            if parts.adapters is not None:
                words = parts.adapters.embedding(words)
            self._embed = TokenEmbedding(words, self.shard, self._ranks)
        self._embedding_norm: Norm = NO_NORM
        if place.first and config.embedding_norm:
            self._embedding_norm = parts.norm("embedding_norm", config.row_of_embedding)
        self._positions = self._types = self._projection = None
        if place.first and config.learned_positions:
            rows = config.first_position + config.learned_positions
            self._positions = weights.take(POSITIONS, (rows, config.row_of_embedding))
        if place.first and config.token_types:
            self._types = weights.take(TYPES, (config.token_types, config.row_of_embedding))
        if place.first and config.embedding_size:
            outputs = [(PROJECTION, config.hidden_size)]
            self._projection = parts.product(outputs, config.embedding_size, bias=True)
        self._multiplier = None
        if config.embedding_multiplier != 1.0:
            # In the rows' dtype, as the models were trained.
            self._multiplier = torch.tensor(
                config.embedding_multiplier, dtype=self.dtype, device=weights.device
            )
        # Models with either of these are in one stage.
        own, streams = config.per_layer_inputs, config.streams
        self._inputs = None if own is None else PerLayerInputs.load(parts, own)
        hyper = config.hyper_connections
        self._streams: Streams | HyperEnds | None = None
        if streams is not None:
            self._streams = Streams.load(parts, streams)
        elif hyper is not None:
            self._streams = HyperEnds.load(parts, hyper)
        if tied:
            weights.ignore(HEAD)
        if place.last:
            self.norm = parts.norm("norm", config.hidden_size) if config.final_norm else NO_NORM
            matrix = self.embedding if tied else weights.take_matrix([(HEAD, shape)])
            self.head = parts.ops.head(matrix)
            bias = None
            if config.head_bias:
                bias = weights.take(HEAD_BIAS, (config.vocab_size,), torch.float32)
            product = self.head if parts.adapters is None else parts.adapters.head(self.head)
            self._logits = Head(product, self.shard, self._ranks, LogitsRule.of(config, bias))

    def hidden(
        self,
        tokens: Tensor,
        positions: Tensor,
        attention: StepAttention,
        layer_done: Callable[[], None],
        states: StepStates = NO_STATES,
        media: RowMedia | None = None,
        encoded: EncodedAttention = NOTHING_ENCODED,
        types: Tensor | None = None,
    ) -> Tensor:
        """Maps `tokens` at `positions`, each [rows] int64, to the last layer's output, [rows,
        hidden].

        `attention` is that of this step; its cache receives the rows' keys and values. `layer_done`
        is called after each layer, so that progress can be observed. `states` are those of this
        step's sequences in recurrent layers. `media` stand in the place of some of the tokens.
        `encoded` is the attention to an encoder's output; `positions` are then those among the
        decoder's tokens. `types`: the tokens' types, [rows] int64, of a model with such.
        """
        before = self.receive(tokens.shape[0])
        hidden = self.through_layers(
            tokens, before, positions, attention, layer_done, states, media, encoded, types
        )
        self.send(hidden)
        return hidden

    def receive(self, rows: int) -> Tensor | None:
        """Returns what the previous stage sends, [rows, hidden], which the layers may modify.
        Returns None in the first stage."""
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
        states: StepStates = NO_STATES,
        media: RowMedia | None = None,
        encoded: EncodedAttention = NOTHING_ENCODED,
        types: Tensor | None = None,
    ) -> Tensor:
        """Does what `hidden` does, without communication with other stages. `before` is what was
        received."""
        by_time = None if media is None else media.positions
        rotations = tuple(rotary.at(positions, by_time) for rotary in self.rotaries)
        residual = self.embedded(tokens, positions, types) if before is None else before
        if media is not None and before is None:
            media.put_into(residual)
        update, inputs = None, None
        if self._inputs is not None:
            inputs = self._inputs(tokens, residual)
        if self._streams is not None:
            residual = self._streams.begin(residual)
        step = Step(rotations, attention, states, encoded, inputs, media, tokens, positions)
        kept: dict[int, Tensor] = {}
        for number, layer in enumerate(self.layers):
            self._keep_aux(number, kept, residual, update)
            update = layer(update, residual, step)
            layer_done()
        self._keep_aux(len(self.layers), kept, residual, update)
        if self._aux_hidden is not None:
            self._aux_hidden.keep(kept)
        if update is not None:
            residual = residual + update
        return residual if self._streams is None else self._streams.end(residual)

    def _keep_aux(
        self, layers: int, kept: dict[int, Tensor], residual: Tensor, update: Tensor | None
    ) -> None:
        """Keeps what so many layers have made of the rows, where it is asked for."""
        if self._aux_hidden is not None and layers in self._aux_hidden.behind:
            kept[layers] = residual.clone() if update is None else residual + update

    def embedded(self, tokens: Tensor, positions: Tensor, types: Tensor | None = None) -> Tensor:
        """Maps `tokens` at `positions`, and of `types` if the model has any, each [rows] int64, to
        what the first layer gets of them, [rows, hidden]. Of the first stage. Raises ValueError
        without the types of a model that has some."""
        rows = self._embed(tokens)
        if self._multiplier is not None:
            rows = rows * self._multiplier
        if self._positions is not None:
            rows = rows + self._positions[positions + self.config.first_position]
        if self._types is not None:
            if types is None:
                raise ValueError("the model has token types, and none are given")
            rows = rows + self._types[types]
        rows = self._embedding_norm(rows)
        return rows if self._projection is None else self._projection(rows)

    def store_encoded(self, rows: Tensor, encoded: EncodedAttention) -> None:
        """Puts each layer's keys and values of an encoder's output, [rows, hidden], into the cache.
        In a model whose layers attend to it."""
        for layer in self.layers:
            if isinstance(layer, CrossLayer | PictureLayer):
                layer.crossed.store(rows, encoded)

    def send(self, hidden: Tensor) -> None:
        """Sends to the next stage, if there is one. `hidden` must not be modified any more."""
        if not self._ranks.place.last:
            self._ranks.send(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """Maps [rows, hidden] to logits, [rows, vocab] float32. Before the last stage, returns an
        empty tensor, [0, vocab]."""
        if not self._ranks.place.last:
            return hidden.new_empty(0, self.config.vocab_size, dtype=torch.float32)
        return self._logits(self.norm(hidden))
