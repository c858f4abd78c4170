"""An assistant as layers, which attend to keys and values that another model has stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.model.config import HeadConfig
from penstock_worker.attention.interface import (
    PLAIN_RULE,
    HeadNorms,
    Rotation,
    ScoreRule,
    StepAttention,
)
from penstock_worker.layers.decoder_layer import load_layer
from penstock_worker.layers.parts import DecoderOps, Parts
from penstock_worker.layers.per_layer_inputs import finished
from penstock_worker.layers.reference_ops import REFERENCE
from penstock_worker.layers.rotary import Rotary
from penstock_worker.layers.step import Step
from penstock_worker.layers.vocabulary import Head, LogitsRule
from penstock_worker.models.decoder import EMBEDDING
from penstock_worker.parallel.ranks import ALONE
from penstock_worker.parallel.shard import shard_of
from penstock_worker.weights.weights import Weights


@dataclass(frozen=True)
class Borrowing:
    """Attention of the served model's layers, which an assistant's layers ask in place of their
    own."""

    served: StepAttention
    config: HeadConfig

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
        source = self.config.layer(layer).attention.reads
        if source is None:
            raise ValueError(f"layer {layer} of the assistant reads none of the model's")
        return self.served.attend(source, query, key, value, rotation, norms, rule)


class AssistantModel:
    """Loads its weights when it is constructed, and is read-only from then on."""

    def __init__(
        self, config: HeadConfig, weights: Weights, positions: int, ops: DecoderOps = REFERENCE
    ) -> None:
        """`positions`: that a newest token may have. Raises UnsupportedModel for weights that don't
        fit the configuration."""
        self.config = config
        self.dtype = weights.dtype
        shard, width = shard_of(config, ALONE.place), config.hidden_size
        parts = Parts(config, weights, ops, shard)
        self._rotaries = [Rotary.load(spec, weights, positions + 1) for spec in config.ropes]
        taken = 2 * config.served_hidden
        self._join = parts.product([("pre_projection", width)], taken, bias=False)
        self._layers = [
            finished(parts, number, load_layer(parts, number)) for number in shard.layers
        ]
        self._norm = parts.norm("norm", width)
        matrix = weights.take_matrix([(EMBEDDING, (config.vocab_size, width))])
        self._head = Head(ops.head(matrix), shard, ALONE, LogitsRule.of(config, None))
        self._back = parts.product([("post_projection", config.served_hidden)], width, bias=False)
        weights.finish()

    def normed(
        self,
        embedded: Tensor,
        hidden: Tensor,
        positions: Tensor,
        attention: StepAttention,
        layer_done: Callable[[], None],
    ) -> Tensor:
        """Maps embeddings of the newest tokens, and hidden states before them, each [rows, hidden
        of the model], to the output of the norm after the layers, [rows, hidden]. `positions`: the
        newest tokens', [rows] int64."""
        rotations = tuple(rotary.at(positions) for rotary in self._rotaries)
        step = Step(rotations, attention)
        residual, update = self._join(torch.cat((embedded, hidden), 1)), None
        for layer in self._layers:
            update = layer(update, residual, step)
            layer_done()
        return self._norm(residual if update is None else residual + update)

    def onward(self, normed: Tensor) -> Tensor:
        """Maps [rows, hidden] to the hidden states of further drafts, [rows, hidden of the
        model]."""
        return self._back(normed)

    def logits(self, normed: Tensor) -> Tensor:
        """Maps [rows, hidden] to logits, [rows, vocab] float32."""
        return self._head(normed)
