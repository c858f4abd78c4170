"""Decoders as a Body: chunks over the KV cache, and the last token's vector at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec
import numpy as np
import torch
from torch import Tensor

from penstock.model_config import ModelConfig, PreparedModel
from penstock.protocol.to_worker import Setup, SlotWork
from penstock_kernels.reference.tiling import padded_rows
from penstock_worker.attention.interface import BatchLayout, CacheShape
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.dtype import cache_dtype, compute_dtype
from penstock_worker.forward.interface import StepCancelled
from penstock_worker.models import model_class
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.pooling.heads import Head, decoder_head
from penstock_worker.slots import Slots
from penstock_worker.weights import open_weights


class DecoderBody:
    def __init__(self, model: DecoderModel, attention: ReferenceAttention) -> None:
        self.layers_done = 0
        self._lock = threading.Lock()
        self._cancelled = False
        self._model = model
        self._attention = attention

    def rows(self, works: list[SlotWork], slots: Slots) -> list[Tensor]:
        tokens: list[int] = []
        tables: list[np.ndarray] = []
        positions: list[np.ndarray] = []
        for work in works:
            slot, end = slots[work.slot], work.start + work.count
            tokens += slot.tokens[work.start : end]
            tables.append(slot.table(end, slots.bounds.block_size))
            positions.append(np.arange(work.start, end))
        padding = (0, padded_rows(len(tokens)) - len(tokens))
        counts = np.array([work.count for work in works])
        layout = BatchLayout(tables, np.array([work.start for work in works]), counts)
        hidden = self._model.hidden(
            torch.from_numpy(np.pad(np.array(tokens, dtype=np.int64), padding)),
            torch.from_numpy(np.pad(np.concatenate(positions), padding)),
            self._attention.plan(layout),
            self._count_layer,
        )
        last = hidden[torch.from_numpy(np.cumsum(counts) - 1)]
        return list(self._model.norm(last).split(1))

    def kv_blocks(self) -> list[np.ndarray]:
        return self._attention.kv_blocks()

    def cancel(self) -> None:
        self._cancelled = True

    def _count_layer(self) -> None:
        if self._cancelled:
            raise StepCancelled
        with self._lock:
            self.layers_done += 1


def build_decoder(
    prepared: PreparedModel, setup: Setup
) -> tuple[int, Callable[[int], DecoderBody], Head | None]:
    """Reads the weights. Returns a block's bytes, what makes the Body with so many blocks, and the
    head."""
    config = prepared.config
    if not isinstance(config, ModelConfig):
        raise TypeError(f"{type(config).__name__} is no decoder's")
    # Its output head is not computed: as if it were the embedding, it is neither read nor needed.
    headless = msgspec.structs.replace(config, tie_word_embeddings=True)
    dtype = compute_dtype(setup.dtype, prepared.weights)
    shape = CacheShape(
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=setup.block_size,
        dtype=cache_dtype(setup.kv_cache_dtype, dtype),
    )
    weights = open_weights(prepared.weights, headless, dtype)
    head = None
    if setup.pooling is not None and setup.pooling.labels:
        head = decoder_head(weights, len(setup.pooling.labels), config.hidden_size)
    weights.ignore("score.weight")
    model = model_class(config.architecture)(headless, weights, setup.max_model_len)
    return (
        ReferenceAttention.block_bytes(shape),
        lambda blocks: DecoderBody(model, ReferenceAttention(shape, blocks)),
        head,
    )
