"""Pooling models on CUDA: Triton kernels and queued steps.

With TRITON_INTERPRET=1 all of it runs on the CPU in Triton's interpreter: slow, for tests.
"""

from __future__ import annotations

import msgspec
from torch import Tensor

from penstock.model.config import EncoderConfig, ModelConfig, PreparedModel
from penstock.model.pooling_config import PoolingConfig
from penstock.protocol.to_worker import Setup
from penstock_worker.adapters.models import AdaptableModel
from penstock_worker.device.queue import queue_of
from penstock_worker.forward import triton as generating
from penstock_worker.forward.device import compute_device
from penstock_worker.forward.queued import RowsHead
from penstock_worker.loading.device import load_forward
from penstock_worker.metrics.phases import Phases
from penstock_worker.models.decoder import DecoderModel, headless
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.pooling.adaptable import adapted_decoder
from penstock_worker.pooling.adapters import AdaptedPooling, PoolAdapters
from penstock_worker.pooling.decoders import head_of, require_attention
from penstock_worker.pooling.device_body import DeviceDecoderBody
from penstock_worker.pooling.device_pooler import DevicePooler
from penstock_worker.pooling.heads import Head
from penstock_worker.pooling.kind import Pool
from penstock_worker.pooling.recipe import (
    PoolingParts,
    PoolingRecipe,
    pooling_fingerprint,
    pooling_slots,
)
from penstock_worker.pooling.triton_encoders import encoder_recipe
from penstock_worker.pooling.triton_head_ops import TritonHeadOps
from penstock_worker.steps.runner import StepRunner
from penstock_worker.weights.weights import Weights


def recipe(
    prepared: PreparedModel, setup: Setup, threads: int, ranks: Ranks = ALONE
) -> PoolingRecipe:
    """Makes the recipe of any pooling model. Raises ImportError without Triton, Unable for a model
    that its kernels can't run, and StartupError for settings that no backend can follow."""
    if setup.pooling is None:
        raise ValueError("the setup is of a model that generates")
    device = generating.kernel_device(setup)
    if isinstance(prepared.config, EncoderConfig):
        return encoder_recipe(prepared, prepared.config, setup, setup.pooling, device)
    return _decoder(prepared, prepared.config, setup, setup.pooling, threads, ranks)


class PooledVectors:
    """The Purpose of a decoder of which the rows after the last norm are wanted."""

    def __init__(
        self,
        config: ModelConfig,
        pooling: PoolingConfig,
        ops: TritonHeadOps,
        adapted: AdaptedPooling | None,
    ) -> None:
        """`adapted`: None if there are no adapters."""
        self.head: Head | None = None
        self._adapted = adapted
        self._config = config
        self._pooling = pooling
        self._ops = ops

    def take(self, weights: Weights) -> None:
        self.head = head_of(weights, self._config, self._pooling, self._ops)

    def of(self, model: DecoderModel) -> RowsHead:
        return model.norm

    def adaptable(self, config: ModelConfig, setup: Setup) -> AdaptableModel:
        if self._adapted is None:
            raise ValueError("the setup asks for no adapters")
        return self._adapted.model


def _decoder(
    prepared: PreparedModel,
    config: ModelConfig,
    setup: Setup,
    pooling: PoolingConfig,
    threads: int,
    ranks: Ranks,
) -> PoolingRecipe:
    require_attention(config)
    device = compute_device(setup)
    ops = TritonHeadOps(device, batch_invariant=setup.batch_invariant)
    adapted = adapted_decoder(prepared, config, setup, ops)
    vectors = PooledVectors(config, pooling, ops, adapted)
    # Nothing is decoded, so there are no steps to capture.
    inner = generating.recipe(
        msgspec.structs.replace(prepared, config=headless(config)),
        msgspec.structs.replace(setup, enforce_eager=True),
        threads,
        ranks,
        vectors,
    )

    def score(rows: Tensor) -> None:
        if vectors.head is not None:
            vectors.head(rows[: setup.max_num_seqs].float())

    def load(phases: Phases) -> PoolingParts:
        pool = load_forward(inner, setup, score, ranks)
        adapters = PoolAdapters()
        if adapted is not None and inner.adapters is not None:
            adapters = adapted.steps(inner.adapters, setup)
        body = DeviceDecoderBody(pool.forward, adapters)
        kind = Pool(
            DevicePooler(body, vectors.head, pooling, adapters=adapters),
            pooling_slots(prepared, setup, pool.blocks, inner.kv_groups),
            copies=pool.copies,
            adapters=adapters.steps,
        )
        runner = StepRunner(queue_of(pool.forward.device), kind, phases=phases)
        copies = pool.copies
        return PoolingParts(
            runner,
            pool.blocks,
            copies.host_blocks,
            copies.device_bytes,
            copies.seconds(),
            inner.kv_groups,
        )

    return PoolingRecipe(
        inner.backend,
        inner.dtype,
        inner.device_name,
        f"pooling {inner.fingerprint} {pooling_fingerprint(setup)}",
        load,
    )
