"""Decoders that make vectors: the generating backends compute them, with the rows after the last
norm in place of logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec
import torch
from torch import Tensor

from penstock.model.config import ModelConfig
from penstock.model.mechanisms import RECURRENT, mechanisms
from penstock.model.prepared_model import PreparedModel
from penstock.protocol.to_worker import Setup
from penstock_worker.adapters.models import AdaptableModel
from penstock_worker.batch.block_copies import BlockCopies
from penstock_worker.forward.interface import DeviceRecipe, Forward, Recipe, Unable
from penstock_worker.forward.purpose import Purpose
from penstock_worker.loading.host import load_on_host
from penstock_worker.metrics.phases import Phases
from penstock_worker.models.decoder import headless
from penstock_worker.parallel.ranks import Ranks
from penstock_worker.pooling.adaptable import adapted_decoder
from penstock_worker.pooling.adapters import PoolAdapters
from penstock_worker.pooling.bodies import DecoderBody
from penstock_worker.pooling.heads import VECTORS, Head, HeadOps, head_of
from penstock_worker.pooling.pooler import pooling_runner
from penstock_worker.pooling.recipe import PoolingParts, PoolingRecipe, pooling_fingerprint
from penstock_worker.weights.weights import Weights

if TYPE_CHECKING:
    from penstock_worker.device.block_copies import DeviceBlockCopies

CPU = torch.device("cpu")


def require_attention(config: ModelConfig) -> None:
    """Raises Unable for a model with recurrent layers, whose states pooled sequences don't have."""
    recurrent = sorted(RECURRENT & mechanisms(config))
    if recurrent:
        raise Unable(f"the model has {', '.join(recurrent)}: no vectors are made of those")


class PooledVectors(Purpose):
    """The purpose of a decoder of which the rows after the last norm are wanted, and what a head
    makes of them."""

    headless = True

    def __init__(
        self, prepared: PreparedModel, config: ModelConfig, setup: Setup, ops: HeadOps
    ) -> None:
        """`config`: the whole model's. `ops` compute heads. Raises Unable for a model that adapters
        can change nothing in, if the setup asks for any."""
        self.head: Head | None = None
        self.adapted = adapted_decoder(prepared, config, setup, ops)
        self._config = config
        self._pooling = setup.pooling
        self._ops = ops

    def take(self, weights: Weights) -> None:
        self.head = head_of(weights, self._config, self._pooling, self._ops)

    def adaptable(self, config: ModelConfig, setup: Setup) -> AdaptableModel | None:
        return None if self.adapted is None else self.adapted.model


class Generating(Protocol):
    """A backend's `recipe` (see forward.backends), which follows a purpose."""

    def __call__(
        self,
        prepared: PreparedModel,
        setup: Setup,
        threads: int,
        ranks: Ranks = ...,
        purpose: Purpose = ...,
    ) -> Recipe: ...


def decoder_recipe(
    generating: Generating,
    prepared: PreparedModel,
    config: ModelConfig,
    setup: Setup,
    threads: int,
    ranks: Ranks,
    ops: HeadOps = VECTORS,
) -> PoolingRecipe:
    """`ops` compute heads. Raises what `generating` raises, and Unable for a model that gives no
    vectors."""
    require_attention(config)
    vectors = PooledVectors(prepared, config, setup, ops)
    # Nothing is decoded, so there are no steps to capture.
    inner = generating(
        msgspec.structs.replace(prepared, config=headless(config)),
        msgspec.structs.replace(setup, enforce_eager=True),
        threads,
        ranks,
        vectors,
    )

    def load(phases: Phases) -> PoolingParts:
        forward, device, copies, blocks = _loaded(inner, setup, ranks, vectors)
        adapters = PoolAdapters()
        if vectors.adapted is not None and inner.adapters is not None:
            adapters = vectors.adapted.steps(inner.adapters, setup)
        shares = threads if inner.threads_by_share else 1
        runner = pooling_runner(
            prepared,
            setup,
            DecoderBody(forward, device, adapters, inner.media),
            vectors.head,
            blocks,
            phases,
            shares=None if isinstance(inner, DeviceRecipe) else shares,
            kv_groups=inner.kv_groups,
            copies=copies,
            media=inner.media,
            adapters=adapters,
        )
        seconds = copies.seconds()
        return PoolingParts(
            runner,
            blocks,
            copies.host_blocks,
            copies.device_bytes,
            seconds,
            inner.kv_groups,
            media=inner.media,
        )

    return PoolingRecipe(
        inner.backend,
        inner.dtype,
        inner.device_name if isinstance(inner, DeviceRecipe) else "cpu",
        f"pooling {inner.fingerprint} torch {torch.__version__} {pooling_fingerprint(setup)}",
        load,
    )


def _loaded(
    inner: Recipe, setup: Setup, ranks: Ranks, vectors: PooledVectors
) -> tuple[Forward, torch.device, BlockCopies | DeviceBlockCopies, int]:
    """Returns the forward pass, its device, copies of its KV blocks, and the number of these."""
    if not isinstance(inner, DeviceRecipe):
        forward, blocks, host_blocks = load_on_host(inner, setup, ranks)
        return forward, CPU, BlockCopies(forward.kv_blocks(), host_blocks), blocks
    # Imported here: a worker on a CPU needs no Triton.
    from penstock_worker.loading.device import load_forward

    def score(rows: Tensor) -> None:
        if vectors.head is not None:
            vectors.head(rows[: setup.max_num_seqs].float())

    pool = load_forward(inner, setup, score, ranks)
    return pool.forward, inner.device, pool.copies, pool.blocks
