"""A head that drafts, as layers: what is in front of one layer, the layer, its norm and its own
output head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from penstock.families.eagle3 import NUM_AUX_LAYERS
from penstock.families.family import OF_EMBEDDING, OF_HIDDEN
from penstock.model.config import HeadConfig
from penstock.model.layer_spec import HyperConnectionsSpec
from penstock_worker.attention.interface import StepAttention
from penstock_worker.layers.attention import SelfAttention
from penstock_worker.layers.decoder_layer import load_layer
from penstock_worker.layers.feed_forward import FeedForward
from penstock_worker.layers.hyper_connections import HyperEnds
from penstock_worker.layers.norm_kinds import ATTENTION_NORM, FEED_FORWARD_NORM
from penstock_worker.layers.parts import DecoderOps, Parts
from penstock_worker.layers.per_layer_inputs import Layer
from penstock_worker.layers.reference_ops import REFERENCE
from penstock_worker.layers.rotary import Rotary
from penstock_worker.layers.step import Step
from penstock_worker.layers.vocabulary import Head, LogitsRule, TokenEmbedding
from penstock_worker.models.decoder import EMBEDDING, HEAD
from penstock_worker.parallel.ranks import ALONE
from penstock_worker.parallel.shard import shard_of
from penstock_worker.weights.heads import SharedEnds, drafted_ids
from penstock_worker.weights.weights import Matrix, Weights


def _unchanged(taken: Tensor) -> Tensor:
    return taken.clone()  # Later steps may write where it was taken.


class JoinedFront:
    """A product joins embedding and hidden state, each normed by itself (DeepSeek-AI, "DeepSeek-V3
    technical report", 2024, section 2.2)."""

    def __init__(self, parts: Parts, config: HeadConfig) -> None:
        width = parts.config.hidden_size
        self._embedding_norm = parts.norm("enorm", width)
        self._hidden_norm = parts.norm("hnorm", width)
        self._join = parts.product([("eh_proj", width)], 2 * width, bias=False)
        self.to_hidden = parts.norm("served_norm", width) if config.normed_input else _unchanged
        self._layer: Layer = load_layer(parts, 0)
        self._hidden_first = config.hidden_first

    def end(self, residual: Tensor) -> Tensor:
        """Maps what the layer gives to what is normed for logits, [rows, hidden]."""
        return residual

    def __call__(self, embedded: Tensor, hidden: Tensor, step: Step) -> Tensor:
        """Maps [rows, hidden] of each to the layer's residual."""
        pair = self._embedding_norm(embedded), self._hidden_norm(hidden)
        both = torch.cat(pair[::-1] if self._hidden_first else pair, 1)
        residual = self._join(both)
        update = self._layer(None, residual, step)
        return residual if update is None else residual + update


class MixedFront:
    """In front of a layer that mixes several residuals: each is a product of one of the served
    model's, normed by itself, and one of the embedding, which is added to all (DeepSeek-AI,
    "DeepSeek-V4", 2026)."""

    def __init__(self, parts: Parts, config: HeadConfig, mixed: HyperConnectionsSpec) -> None:
        width = config.hidden_size
        self._count = mixed.count
        self._embedding_norm = parts.norm("enorm", width)
        self._hidden_norm = parts.norm("hnorm", width)
        self._of_embedding = parts.product([(OF_EMBEDDING, width)], width, bias=False)
        self._of_hidden = parts.product([(OF_HIDDEN, width)], width, bias=False)
        self._layer: Layer = load_layer(parts, 0)
        self._ends = HyperEnds.load(parts, mixed)

    def to_hidden(self, taken: Tensor) -> Tensor:
        return _unchanged(taken)

    def __call__(self, embedded: Tensor, hidden: Tensor, step: Step) -> Tensor:
        """Maps embeddings, [rows, hidden], and all residuals, [rows, count * hidden], to residuals
        after the layer."""
        apart = hidden.unflatten(1, (self._count, -1)).flatten(0, 1)
        residuals = self._of_hidden(self._hidden_norm(apart)).unflatten(0, (-1, self._count))
        residuals = residuals + self._of_embedding(self._embedding_norm(embedded))[:, None]
        self._layer(None, residuals, step)
        return residuals.flatten(1)

    def end(self, residuals: Tensor) -> Tensor:
        """Maps [rows, count * hidden] to what is normed for logits, [rows, hidden]."""
        return self._ends.end(residuals.unflatten(1, (self._count, -1)))


class BesideFront:
    """Attention reads embedding and hidden state side by side, each normed by itself (Li et al.,
    "EAGLE-3", 2025)."""

    def __init__(self, parts: Parts, config: HeadConfig) -> None:
        width = config.hidden_size
        taken = NUM_AUX_LAYERS * config.served_hidden
        self.to_hidden = parts.product([("fc", width)], taken, bias=False)
        self._embedding_norm = parts.norm(f"layers.0.{ATTENTION_NORM}", width)
        self._hidden_norm = parts.norm("layers.0.hidden_norm", width)
        self._attention = SelfAttention.load(parts, 0)
        self._norm = parts.norm(f"layers.0.{FEED_FORWARD_NORM}", width)
        self._feed_forward = FeedForward.load(parts, 0)
        self._normed_residual = config.normed_residual

    def end(self, residual: Tensor) -> Tensor:
        """Maps what the layer gives to what is normed for logits, [rows, hidden]."""
        return residual

    def __call__(self, embedded: Tensor, hidden: Tensor, step: Step) -> Tensor:
        """Maps [rows, hidden] of each to the residual, as JoinedFront does."""
        normed = self._hidden_norm(hidden)
        residual = normed.clone() if self._normed_residual else hidden.clone()
        both = torch.cat((self._embedding_norm(embedded), normed), 1)
        update = self._feed_forward(self._norm.added(self._attention(both, step), residual))
        return residual + update


class DraftHeadModel:
    """Loads its weights when it is constructed, and is read-only from then on."""

    def __init__(
        self,
        config: HeadConfig,
        weights: Weights,
        positions: int,
        ops: DecoderOps = REFERENCE,
        ends: SharedEnds[Any] | None = None,
    ) -> None:
        """`ends`: of other layers of the same head. Raises UnsupportedModel for weights that don't
        fit the configuration."""
        self.config = config
        self.dtype = weights.dtype
        shard, width = shard_of(config, ALONE.place), config.hidden_size
        parts = Parts(config, weights, ops, shard)
        self._rotaries = [Rotary.load(spec, weights, positions) for spec in config.ropes]
        ends = SharedEnds() if ends is None else ends

        def end(name: str, rows: int) -> Matrix:
            return weights.take_matrix([(name, (rows, width))])

        table = ends.get(weights, EMBEDDING, lambda: ops.table(end(EMBEDDING, config.served_vocab)))
        self._embed = TokenEmbedding(table, shard, ALONE)
        self._front = _front(parts, config)
        self.ids = drafted_ids(weights, config) if config.beside else None
        self._norm = parts.norm("norm", width)
        head = ends.get(weights, HEAD, lambda: ops.head(end(HEAD, config.vocab_size)))
        self._head = Head(head, shard, ALONE, LogitsRule.of(config, None))
        weights.finish()

    def to_hidden(self, taken: Tensor) -> Tensor:
        """Maps what was taken of the served model, [rows, width], to hidden states."""
        return self._front.to_hidden(taken)

    def hidden(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, attention: StepAttention
    ) -> Tensor:
        """Maps `tokens` at `positions`, each [rows] int64, and hidden states to the layer's output,
        each [rows, hidden numbers] (see HeadConfig)."""
        rotations = tuple(rotary.at(positions) for rotary in self._rotaries)
        return self._front(self._embed(tokens), hidden, Step(rotations, attention))

    def onward(self, hidden: Tensor) -> Tensor:
        """Maps the layer's output to the hidden states of further drafts, each [rows, hidden
        numbers]."""
        return self._norm(hidden) if self.config.normed_result else hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Maps the layer's output, [rows, hidden numbers], to logits of its own ids, [rows, vocab]
        float32."""
        return self._head(self._norm(self._front.end(hidden)))


def _front(parts: Parts, config: HeadConfig) -> BesideFront | JoinedFront | MixedFront:
    if config.hyper_connections is not None:
        return MixedFront(parts, config, config.hyper_connections)
    return BesideFront(parts, config) if config.beside else JoinedFront(parts, config)
