"""Heads that draft, in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from penstock.model.config import HeadConfig, ModelConfig
from penstock.model.kv_layout import kv_layout
from penstock.model.prepared_model import WeightFiles
from penstock.protocol.to_worker import Setup
from penstock_kernels.reference.tiling import padded_rows
from penstock_worker.attention.interface import BatchLayout, CacheShape
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.dtype import cache_dtype, compute_dtype
from penstock_worker.forward.heads import (
    AssistantRecipe,
    HeadForward,
    HeadRecipe,
    LikelyIds,
    OpenHead,
    in_served_vocabulary,
)
from penstock_worker.forward.interface import Batch, Forward
from penstock_worker.forward.layer_by_layer import LayerByLayer
from penstock_worker.forward.reference import ReferenceForward
from penstock_worker.models.assistant import AssistantModel, Borrowing
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.models.draft_head import DraftHeadModel
from penstock_worker.weights.heads import SharedEnds, assistant_weights


class ReferenceHead(LayerByLayer):
    """Adapts a DraftHeadModel to the interface `HeadForward`."""

    def __init__(self, model: DraftHeadModel, attention: ReferenceAttention) -> None:
        super().__init__()
        self._model = model
        self._attention = attention

    def kv_blocks(self) -> list[np.ndarray]:
        return self._attention.kv_blocks()

    @property
    def like(self) -> Tensor:
        return torch.empty(0, self._model.config.hidden_numbers, dtype=self._model.dtype)

    def hidden(self, taken: Tensor) -> Tensor:
        return self._model.to_hidden(_padded(taken.to(self._model.dtype)))[: len(taken)]

    def step(
        self, batch: Batch, hidden: Tensor, rows: np.ndarray, onward: np.ndarray
    ) -> tuple[Tensor, Tensor]:
        model, count = self._model, len(batch.tokens)
        padding = (0, padded_rows(count) - count)
        layout = BatchLayout(batch.tables, batch.starts, batch.counts)
        found = model.hidden(
            torch.from_numpy(np.pad(batch.tokens, padding)),
            _padded(hidden),
            torch.from_numpy(np.pad(layout.positions, padding)),
            self._attention.plan(layout),
        )
        self._count_layer()
        logits = model.logits(found[torch.from_numpy(rows)])
        return (
            in_served_vocabulary(logits, model.ids, model.config.served_vocab),
            model.onward(found[torch.from_numpy(onward)]),
        )


def _padded(rows: Tensor) -> Tensor:
    return pad(rows, (0, 0, 0, padded_rows(len(rows)) - len(rows)))


def head_recipe(
    config: HeadConfig,
    files: WeightFiles,
    opening: OpenHead,
    setup: Setup,
    threads: int,
    ends: SharedEnds[Any],
) -> HeadRecipe:
    """`files`: the head's. `opening` opens its weights. `setup`: its own. `ends`: of all layers of
    the head. Raises StartupError for settings that can't be followed."""
    dtype = compute_dtype(setup.dtype, files)
    cache = cache_dtype(setup.kv_cache_dtype, dtype)
    layout = kv_layout(config, setup.max_model_len)
    shape = CacheShape.of(config, setup.block_size, cache, layout)

    def build() -> Callable[[int], HeadForward]:
        positions = min(setup.max_model_len, config.max_position)
        model = DraftHeadModel(config, opening(dtype), positions, ends=ends)

        def with_blocks(blocks: int) -> HeadForward:
            return ReferenceHead(model, ReferenceAttention(shape, blocks))

        return with_blocks

    name = str(dtype).removeprefix("torch.")
    return HeadRecipe(name, ReferenceAttention.block_bytes(shape), build)


class ReferenceAssistant(LayerByLayer):
    """Adapts an AssistantModel that drafts for the served model to the interface `HeadForward`."""

    def __init__(
        self,
        model: AssistantModel,
        served: DecoderModel,
        attention: ReferenceAttention,
        ids: LikelyIds | None,
    ) -> None:
        """`attention`: over the served model's keys and values, by as many queries as the assistant
        has."""
        super().__init__()
        self._model = model
        self._served = served
        self._attention = attention
        self._ids = ids

    def kv_blocks(self) -> list[np.ndarray]:
        """None: it stores nothing."""
        return []

    @property
    def like(self) -> Tensor:
        return torch.empty(0, self._model.config.served_hidden, dtype=self._model.dtype)

    def hidden(self, taken: Tensor) -> Tensor:
        normed = self._served.norm(_padded(taken.to(self._served.dtype)))
        return normed[: len(taken)].to(self._model.dtype)

    def step(
        self, batch: Batch, hidden: Tensor, rows: np.ndarray, onward: np.ndarray
    ) -> tuple[Tensor, Tensor]:
        model, count = self._model, len(batch.tokens)
        padding = (0, padded_rows(count) - count)
        layout = BatchLayout(batch.tables, batch.starts, batch.counts, batch.more_tables)
        # The newest token's position is one further than that of the last token it sees.
        newest = torch.from_numpy(np.pad(layout.positions + 1, padding))
        embedded = self._served.embedded(torch.from_numpy(np.pad(batch.tokens, padding)), newest)
        attention = Borrowing(self._attention.plan(layout), model.config)
        found = model.normed(
            embedded.to(model.dtype), _padded(hidden), newest, attention, self._count_layer
        )
        wanted = found[torch.from_numpy(rows)]
        logits = model.logits(wanted)
        if self._ids is not None:
            logits = self._ids.only(logits, wanted)
        return logits, model.onward(found[torch.from_numpy(onward)])


def assistant_recipe(
    config: HeadConfig, served: ModelConfig, files: WeightFiles, setup: Setup, threads: int
) -> AssistantRecipe:
    """`config`: made for the served model. `files`, `setup`: the assistant's. Raises StartupError
    for settings that can't be followed."""
    dtype = compute_dtype(setup.dtype, files)

    def build() -> Callable[[Forward], HeadForward]:
        positions = min(setup.max_model_len, config.max_position)
        weights = assistant_weights(files, config, dtype)
        ids = LikelyIds.take(weights, config)
        model = AssistantModel(config, weights, positions)

        def beside_model(forward: Forward) -> HeadForward:
            attention = getattr(forward, "attention", None)
            if not isinstance(forward, ReferenceForward) or not isinstance(
                attention, ReferenceAttention
            ):
                raise TypeError(f"no assistant borrows from a {type(forward).__name__}")
            borrowed = attention.asked_by(config.num_heads)
            return ReferenceAssistant(model, forward.model, borrowed, ids)

        return beside_model

    return AssistantRecipe(str(dtype).removeprefix("torch."), build)
