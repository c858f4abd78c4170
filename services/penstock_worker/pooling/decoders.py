"""Decoders as a Body: inputs are computed in chunks over the KV cache, and the last token's vector
is the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from torch import Tensor

from penstock.model.config import ModelConfig, PreparedModel
from penstock.model.mechanisms import RECURRENT, mechanisms
from penstock.model.pooling_config import PoolingConfig
from penstock.protocol.to_worker import Setup, SlotWork
from penstock_worker.adapters.rows import RowAdapters
from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.batch.prepare_inputs import prepare_inputs
from penstock_worker.batch.slots import Slots
from penstock_worker.dtype import cache_dtype, compute_dtype
from penstock_worker.forward.interface import Forward, Unable
from penstock_worker.forward.reference import ReferenceForward
from penstock_worker.models.decoder import DecoderModel, headless
from penstock_worker.pooling.adapters import PoolAdapters
from penstock_worker.pooling.heads import VECTORS, Head, HeadOps, answer_head, decoder_head
from penstock_worker.weights.opening import open_weights
from penstock_worker.weights.weights import Weights


class DecoderBody:
    """A decoder's layers and its last norm."""

    def __init__(self, forward: Forward, adapters: PoolAdapters | None = None) -> None:
        """`forward` has the model's last norm in place of its head, so that its "logits" are hidden
        vectors. `adapters`: those of sequences."""
        self._forward = forward
        self._adapters = adapters or PoolAdapters()

    @property
    def layers_done(self) -> int:
        return self._forward.layers_done

    def rows(self, works: list[SlotWork], slots: Slots) -> list[Tensor]:
        batch = replace(prepare_inputs(works, slots), adapters=self._adapters.of_batch(works))
        return list(self._forward.logits(batch, np.cumsum(batch.counts) - 1).split(1))

    def kv_blocks(self) -> list[np.ndarray]:
        return self._forward.kv_blocks()

    def cancel(self) -> None:
        self._forward.cancel()


def require_attention(config: ModelConfig) -> None:
    """Raises Unable for a model with recurrent layers, whose states pooled sequences don't have."""
    recurrent = sorted(RECURRENT & mechanisms(config))
    if recurrent:
        raise Unable(f"the model has {', '.join(recurrent)}: no vectors are made of those")


def head_of(
    weights: Weights, config: ModelConfig, pooling: PoolingConfig | None, ops: HeadOps = VECTORS
) -> Head | None:
    """Returns the classification head that is asked for, and passes over what else the file has of
    heads. `config` is that of the whole model."""
    head = None
    if pooling is not None and pooling.answers is not None:
        head = answer_head(weights, config, pooling.answers, ops)
    elif pooling is not None and pooling.labels:
        head = decoder_head(weights, len(pooling.labels), config.hidden_size, ops)
    for name in ("score.weight", "lm_head.bias"):
        weights.ignore(name)
    return head


def build_decoder(
    prepared: PreparedModel,
    setup: Setup,
    adapters: PoolAdapters | None = None,
    rows: RowAdapters | None = None,
) -> tuple[int, Callable[[int], DecoderBody], Head | None]:
    """Reads the weights. `rows` say which of them have which of the adapters. Returns (bytes of a
    KV block, a function that makes the Body for a number of blocks, the classification head)."""
    config = prepared.config
    if not isinstance(config, ModelConfig):
        raise TypeError(f"{type(config).__name__} is no decoder's")
    own = headless(config)
    dtype = compute_dtype(setup.dtype, prepared.weights)
    cache = cache_dtype(setup.kv_cache_dtype, dtype)
    shape = CacheShape.of(config, setup.block_size, cache)
    weights = open_weights(prepared.weights, own, dtype)
    head = head_of(weights, config, setup.pooling)
    model = DecoderModel(own, weights, setup.max_model_len, adapters=rows)
    return (
        ReferenceAttention.block_bytes(shape),
        lambda blocks: DecoderBody(
            ReferenceForward(
                model, ReferenceAttention(shape, blocks), head=model.norm, adapters=rows
            ),
            adapters,
        ),
        head,
    )
