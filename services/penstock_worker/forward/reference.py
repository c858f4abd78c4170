"""The reference backend: models of plain torch operations with a KV cache in torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from penstock.model.kv_layout import kv_layout
from penstock.model.mechanisms import PICTURE_LAYERS
from penstock.model.media_facts import alignment_heads
from penstock.model.prepared_model import PreparedModel
from penstock.protocol.to_worker import Setup
from penstock_kernels.reference.tiling import padded_rows
from penstock_worker.adapters.rows import RowAdapters, TorchAdapters
from penstock_worker.attention.interface import AttentionBackend, BatchLayout, CacheShape
from penstock_worker.attention.pictures_apart import PicturesApartCache
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.attention.reference_encoder import EncoderDecoderCache
from penstock_worker.dtype import cache_dtype, compute_dtype
from penstock_worker.forward.aux_hidden import aux_hidden_for
from penstock_worker.forward.common_mechanisms import ON_CPUS
from penstock_worker.forward.interface import Batch, Forward, Recipe, Unable, require
from penstock_worker.forward.layer_by_layer import LayerByLayer
from penstock_worker.forward.purpose import LOGITS, Purpose
from penstock_worker.forward.reference_encoder import EncoderDecoderForward, PicturesApartForward
from penstock_worker.layers.recurrent.interface import NO_STATES
from penstock_worker.layers.step import RowMedia
from penstock_worker.media.interface import BatchMedia
from penstock_worker.media.loading import ModelMedia
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.parallel.shard import Shard, shard_of
from penstock_worker.states.planning import groups_over_ranks, slot_states
from penstock_worker.states.slot_states import SlotStates
from penstock_worker.weights.cut import Cut
from penstock_worker.weights.opening import open_weights

MECHANISMS = ON_CPUS | {PICTURE_LAYERS}
"""What this backend has beyond Llama's layers."""
NOT_BESIDE_PICTURES = "adapters, several ranks and vectors of texts"


class ReferenceForward(LayerByLayer):
    """The forward pass in plain torch."""

    def __init__(
        self,
        model: DecoderModel,
        attention: AttentionBackend,
        ranks: Ranks = ALONE,
        head: Callable[[Tensor], Tensor] | None = None,
        states: SlotStates | None = None,
        adapters: RowAdapters | None = None,
    ) -> None:
        """`model` and `attention` agree on layers and heads. `head` is what is computed from the
        last layer's rows in place of logits. `states`: those of recurrent layers.
        `adapters`: those of rows, which the model reads."""
        super().__init__(ranks.check)
        self._model = model
        self._attention = attention
        self._head = head or model.logits
        self._states = states
        self._adapters = adapters or RowAdapters()

    @property
    def model(self) -> DecoderModel:
        """What computes the layers."""
        return self._model

    @property
    def attention(self) -> AttentionBackend:
        """What has their keys and values."""
        return self._attention

    def count_layer(self) -> None:
        """Counts a layer that isn't one of the decoder's. Raises what `logits` raises."""
        self._count_layer()

    def kv_blocks(self) -> list[np.ndarray]:
        return self._attention.kv_blocks()

    def logits(self, batch: Batch, rows: np.ndarray) -> Tensor:
        with self._adapters.of(batch.adapters, batch.counts):
            return self._computed(batch, rows)

    def _computed(self, batch: Batch, rows: np.ndarray) -> Tensor:
        count = len(batch.tokens)
        padding = (0, padded_rows(count) - count)
        media = batch.media
        layout = BatchLayout(
            batch.tables,
            batch.starts,
            batch.counts,
            batch.more_tables,
            None if media is None else media.last_seen,
            None if media is None else media.between,
        )
        hidden = self._model.hidden(
            torch.from_numpy(np.pad(batch.tokens, padding)),
            torch.from_numpy(np.pad(layout.positions, padding)),
            self._attention.plan(layout),
            self._count_layer,
            NO_STATES if self._states is None else self._states.step(batch),
            None if media is None else _row_media(media, padding),
        )
        wanted = torch.from_numpy(rows)
        with self._adapters.only(wanted):
            return self._head(hidden[wanted])


def _row_media(media: BatchMedia, padding: tuple[int, int]) -> RowMedia:
    positions = media.positions
    if positions is not None:
        positions = np.pad(positions, ((0, 0), padding))
    return RowMedia(
        torch.from_numpy(media.rows),
        media.embeddings,
        None if positions is None else torch.from_numpy(positions),
    )


def _forward(
    model: DecoderModel,
    attention: ReferenceAttention,
    ranks: Ranks,
    states: SlotStates | None,
    adapters: RowAdapters | None,
    purpose: Purpose,
    heads: Sequence[tuple[int, int]] = (),
) -> ReferenceForward | EncoderDecoderForward:
    rows = model.config.encoder_rows
    if rows:
        return EncoderDecoderForward(model, EncoderDecoderCache(attention, rows), ranks, heads)
    if model.config.pictures_apart:
        return PicturesApartForward(model, PicturesApartCache(attention), ranks)
    head = model.norm if purpose.headless else model.logits
    return ReferenceForward(model, attention, ranks, head, states, adapters)


def recipe(
    prepared: PreparedModel,
    setup: Setup,
    threads: int,
    ranks: Ranks = ALONE,
    purpose: Purpose = LOGITS,
) -> Recipe:
    """The recipe for any model that a family exists for, with any block size. Raises Unable for a
    quantization, because products here are of floats only."""
    if setup.quantization != "none":
        raise Unable(f"quantization is {setup.quantization}, which needs the cpu backend")
    config = prepared.decoder
    require(MECHANISMS, config)
    if config.pictures_apart and (setup.max_loras or ranks.place.ranks > 1 or purpose.headless):
        raise Unable(f"{NOT_BESIDE_PICTURES} aren't served with layers that attend to pictures")
    dtype = compute_dtype(setup.dtype, prepared.weights)
    cache = cache_dtype(setup.kv_cache_dtype, dtype)
    shard, layout = shard_of(config, ranks.place), kv_layout(config, setup.max_model_len)
    shape = CacheShape.of(shard.own, setup.block_size, cache, layout, shard.layers)
    block_bytes = ReferenceAttention.block_bytes(shape)

    def theirs(shard: Shard) -> int:
        shape = CacheShape.of(shard.own, setup.block_size, cache, layout, shard.layers)
        return ReferenceAttention.block_bytes(shape)

    groups = groups_over_ranks(config, shape.groups, theirs, setup, ranks.place)
    states = slot_states(shard.own, groups, setup)
    media = ModelMedia(prepared, setup, ranks, dtype, threads=threads)
    adapters, rows_of, known = None, None, purpose.adaptable(config, setup)
    if known is not None:
        adapters, rows_of = TorchAdapters(known, setup, dtype, Cut(shard)), RowAdapters()
    aux_hidden = aux_hidden_for(config, setup)

    def build() -> Callable[[int], Forward]:
        weights = open_weights(prepared.weights, config, dtype, load_format=setup.load_format)
        purpose.take(weights)
        model = DecoderModel(
            config,
            weights,
            setup.max_model_len,
            ranks=ranks,
            adapters=rows_of,
            aux_hidden=aux_hidden,
        )
        see = media.load()

        def forward(blocks: int) -> Forward:
            attention = ReferenceAttention(shape, blocks)
            if states is not None:
                states.allocate(attention.kv_blocks())
            made = _forward(
                model, attention, ranks, states, rows_of, purpose, alignment_heads(prepared.media)
            )
            see(made.count_layer)
            return made

        return forward

    name, stored = (str(each).removeprefix("torch.") for each in (dtype, cache))
    return Recipe(
        backend="reference",
        dtype=name,
        fingerprint=f"reference {name} KV {stored} torch {torch.__version__}",
        block_bytes=block_bytes,
        kv_groups=groups,
        threads_by_share=ranks.place.ranks == 1,
        build=build,
        states=states,
        media=media.encodings,
        adapters=adapters,
        aux_hidden=aux_hidden,
    )
