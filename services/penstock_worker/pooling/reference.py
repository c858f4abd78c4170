"""Pooling models on the reference kernels: plain torch on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from penstock.model.config import (
    EncoderConfig,
    ModelConfig,
    PreparedModel,
    TransformersConfig,
)
from penstock.model.mechanisms import BY_TRANSFORMERS
from penstock.model.pooling_config import PoolingConfig
from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import Setup, SlotWork
from penstock_worker.adapters.rows import RowAdapters, TorchAdapters
from penstock_worker.batch.block_copies import NO_COPIES, BlockCopies, Copies
from penstock_worker.batch.slots import PlanError, Slots
from penstock_worker.device.queue import HostQueue
from penstock_worker.dtype import cache_dtype, compute_dtype
from penstock_worker.forward.interface import Unable
from penstock_worker.machine.memory import pool_blocks
from penstock_worker.media.interface import NO_MEDIA, StepMedia
from penstock_worker.metrics.phases import Phases
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.pooling.adaptable import adapted_decoder, adapted_encoder
from penstock_worker.pooling.adapters import AdaptedPooling, PoolAdapters
from penstock_worker.pooling.body import Body
from penstock_worker.pooling.decoders import build_decoder, require_attention
from penstock_worker.pooling.dense import load_dense
from penstock_worker.pooling.encoders import EncoderBody, build_encoder
from penstock_worker.pooling.heads import Head
from penstock_worker.pooling.kind import Pool
from penstock_worker.pooling.pool import as_vectors, pooled
from penstock_worker.pooling.recipe import (
    BLOCKS_EACH,
    PoolingParts,
    PoolingRecipe,
    pooling_fingerprint,
    pooling_slots,
)
from penstock_worker.pooling.space import Pictures
from penstock_worker.steps.runner import StepRunner
from penstock_worker.steps.threads import ShareThreads

BuildDecoder = Callable[[PreparedModel, Setup], tuple[int, Callable[[int], Body], Head | None]]
"""Builds a decoder as build_decoder does."""


def recipe(
    prepared: PreparedModel, setup: Setup, threads: int, ranks: Ranks = ALONE
) -> PoolingRecipe:
    """Makes the recipe of any pooling model but those that transformers' code computes. Raises
    StartupError for settings that no backend can follow."""
    if isinstance(prepared.config, TransformersConfig):
        raise Unable(f"the model has {BY_TRANSFORMERS}")
    if isinstance(prepared.config, ModelConfig):
        require_attention(prepared.config)
    dtype = compute_dtype(setup.dtype, prepared.weights)
    name = str(dtype).removeprefix("torch.")
    fingerprint = f"pooling reference {name} torch {torch.__version__} {pooling_fingerprint(setup)}"
    rows = RowAdapters() if setup.max_loras else None
    if isinstance(prepared.config, EncoderConfig):
        of_encoder = adapted_encoder(prepared, prepared.config, setup)

        def load(phases: Phases) -> PoolingParts:
            model, head = build_encoder(prepared, setup, dtype, adapters=rows)
            adapters, _ = _adapters(of_encoder, setup, dtype)
            texts = EncoderBody(model, adapters, rows)
            pictures = Pictures(prepared, setup, dtype, threads)
            body, head = pictures.beside(texts, head, texts.count_layer)
            blocks, media = BLOCKS_EACH * setup.max_num_seqs, pictures.held
            runner = pooling_runner(
                prepared, setup, threads, phases, body, head, blocks, media=media, adapters=adapters
            )
            return PoolingParts(runner, blocks, media=media)

        return PoolingRecipe("reference", name, "cpu", fingerprint, load)
    of_decoder = adapted_decoder(prepared, prepared.decoder, setup)

    def load_of_decoder(phases: Phases) -> PoolingParts:
        adapters, taken = _adapters(of_decoder, setup, dtype)
        build = partial(build_decoder, adapters=adapters, rows=rows)
        return load_decoder(build, prepared, setup, threads, phases, adapters, taken)

    return PoolingRecipe(
        "reference",
        name,
        "cpu",
        f"{fingerprint} KV {cache_dtype(setup.kv_cache_dtype, dtype)}",
        load_of_decoder,
    )


def _adapters(
    adapted: AdaptedPooling | None, setup: Setup, dtype: torch.dtype
) -> tuple[PoolAdapters, int]:
    """Returns them, and the bytes that they take at most."""
    if adapted is None:
        return PoolAdapters(), 0
    made = TorchAdapters(adapted.model, setup, dtype)
    return adapted.steps(made, setup), made.nbytes


def load_decoder(
    build: BuildDecoder,
    prepared: PreparedModel,
    setup: Setup,
    threads: int,
    phases: Phases,
    adapters: PoolAdapters | None = None,
    adapter_bytes: int = 0,
) -> PoolingParts:
    """Reads the weights, and makes a KV cache in the memory that is left, also by the adapters."""
    block_bytes, with_blocks, head = build(prepared, setup)
    blocks = pool_blocks(setup, block_bytes, adapters=adapter_bytes)
    body = with_blocks(blocks)
    copies = BlockCopies(body.kv_blocks(), setup.host_kv_bytes // block_bytes)
    timed = phases.watch(copies, "make", "copies")
    runner = pooling_runner(
        prepared, setup, threads, phases, body, head, blocks, timed, adapters=adapters
    )
    return PoolingParts(runner, blocks, copies.host_blocks, copies.device_bytes, copies.seconds())


def pooling_runner(
    prepared: PreparedModel,
    setup: Setup,
    threads: int,
    phases: Phases,
    body: Body,
    head: Head | None,
    blocks: int,
    copies: Copies = NO_COPIES,
    media: StepMedia | None = None,
    adapters: PoolAdapters | None = None,
) -> StepRunner[Any]:
    """Returns what computes steps of a pooling model on a CPU. `threads`: shares of a step that are
    computed at once; 1 for a body with threads of its own. `media`: None for a model that takes
    none."""
    if setup.pooling is None:
        raise ValueError("the setup is of a model that generates")
    watched, dense = phases.watch(body, "rows", "forward"), load_dense(setup.pooling.dense)
    adapters = adapters or PoolAdapters()
    pooler = HostPooler(watched, head, setup.pooling, dense, adapters)
    seen = NO_MEDIA if media is None else phases.watch(media, "encode", "encode")
    slots = pooling_slots(prepared, setup, blocks)
    kind = Pool(pooler, slots, copies=copies, media=seen, adapters=adapters.steps)
    return StepRunner(HostQueue(), kind, threads=ShareThreads(threads))


# Pooling on a CPU, where a step is done when the call returns.


@dataclass(frozen=True)
class HostPoolingLaunch:
    """Inputs of a step, whose results are known already."""

    results: dict[int, SlotResult]

    def settle(self) -> dict[int, SlotResult]:
        return self.results


@dataclass(frozen=True)
class HostPooler:
    """Computes pooling requests on a CPU."""

    body: Body
    head: Head | None
    config: PoolingConfig
    dense: Head
    """What an embedding goes through."""
    adapters: PoolAdapters = field(default_factory=PoolAdapters)
    """The adapters of sequences, whose heads may be others."""

    def launch(self, scheduled: list[SlotWork], slots: Slots) -> HostPoolingLaunch:
        rows = self.body.rows(scheduled, slots)
        pairs = zip(scheduled, rows, strict=True)
        return HostPoolingLaunch(
            {
                work.slot: self._pool(work, own, slots)
                for work, own in pairs
                if slots[work.slot].failed is None
            }
        )

    def _pool(self, work: SlotWork, rows: Tensor, slots: Slots) -> SlotResult:
        slot, end = slots[work.slot], work.start + work.count
        if slot.pooling is None:
            raise PlanError(f"slot {work.slot} asks a pooling model for text")
        if end < len(slot.token_ids):
            slot.computed = end
            return SlotResult(work.slot)
        head = self.adapters.head_of(work.slot, self.head)
        vectors = as_vectors(pooled(rows, slot.pooling, self.config, head, self.dense))
        slot.computed = end
        return SlotResult(work.slot, 0, vectors=vectors)
