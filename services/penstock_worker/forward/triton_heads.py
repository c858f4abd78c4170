"""Heads that draft, by the CUDA kernels. Their passes are queued one by one, in no CUDA graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from penstock.errors import StartupError
from penstock.families.eagle3 import NUM_AUX_LAYERS
from penstock.model.config import HeadConfig
from penstock.model.kv_layout import kv_layout
from penstock.model.prepared_model import WeightFiles
from penstock.protocol.to_worker import Setup
from penstock_kernels.triton.compilations import KernelTooLarge
from penstock_kernels.triton.shared_memory import shared_memory
from penstock_worker.attention.interface import BatchLayout, CacheShape
from penstock_worker.attention.triton import AttentionChoices, TritonAttention
from penstock_worker.device.memory import DeviceMemory, memory_of
from penstock_worker.dtype import (
    BESIDE_QUANTISED,
    CUDA,
    cache_dtype,
    compute_dtype,
    may_keep,
    stays_quantised,
)
from penstock_worker.forward.common_mechanisms import COMMON
from penstock_worker.forward.device import device_name
from penstock_worker.forward.device_step import HostStep
from penstock_worker.forward.heads import DeviceHeadRecipe, OpenHead, in_served_vocabulary
from penstock_worker.forward.interface import Batch, Unable, require
from penstock_worker.forward.layer_by_layer import LayerByLayer
from penstock_worker.forward.rehearsal import rehearsed_steps, step_of
from penstock_worker.forward.triton import kernel_device
from penstock_worker.forward.triton_limits import (
    attention_of,
    crowded_router,
    obstacle_of,
    quantised_experts,
)
from penstock_worker.forward.uploads import Uploads
from penstock_worker.layers.triton_ops import TritonOps
from penstock_worker.models.draft_head import DraftHeadModel
from penstock_worker.weights.heads import SharedEnds


class TritonHead(LayerByLayer):
    """A DeviceHead. `layers_done` counts passes whose work has been queued."""

    def __init__(
        self,
        model: DraftHeadModel,
        attention: TritonAttention,
        device: torch.device,
        ids: Tensor | None,
        memory: DeviceMemory,
    ) -> None:
        """`ids`: see `in_served_vocabulary`."""
        super().__init__()
        self._model = model
        self._attention = attention
        self._ids = ids
        self._memory = memory
        self._uploads = Uploads(device)
        self.like = torch.empty(0, model.config.hidden_size, dtype=model.dtype, device=device)

    def kv_blocks(self) -> list[np.ndarray]:
        return self._attention.kv_blocks()

    def blocks(self) -> list[Tensor]:
        return [self._attention.blocks()]

    def hidden(self, taken: Tensor) -> Tensor:
        try:
            return self._model.to_hidden(taken.to(self._model.dtype))
        except torch.OutOfMemoryError:
            self._memory.release()
            raise

    def step(
        self, batch: Batch, hidden: Tensor, rows: np.ndarray, onward: np.ndarray
    ) -> tuple[Tensor, Tensor]:
        try:
            return self._step(batch, hidden, rows, onward)
        except torch.OutOfMemoryError:
            self._memory.release()
            raise

    def _step(
        self, batch: Batch, hidden: Tensor, rows: np.ndarray, onward: np.ndarray
    ) -> tuple[Tensor, Tensor]:
        model, attention = self._model, self._attention
        layout = BatchLayout(batch.tables, batch.starts, batch.counts)
        host = HostStep(batch.tokens, layout.positions, rows, attention.lay_out(layout))
        step = host.on_device(attention, self._uploads.send(host.arrays))
        computed = model.hidden(step.tokens.long(), hidden, step.positions, step.attention)
        self._count_layer()
        found, count = computed.index_select(0, step.wanted), model.config.served_vocab
        results = found if onward is rows else _rows_of(computed, onward, len(batch.tokens))
        if len(onward):
            results = model.onward(results)
        if not len(rows):
            return found.new_empty(0, count, dtype=torch.float32), results
        return in_served_vocabulary(model.logits(found), self._ids, count), results


def _rows_of(computed: Tensor, numbers: np.ndarray, rows: int) -> Tensor:
    """Returns some of a pass's rows, which are none or all in their order: nothing is sent to the
    device. Raises ValueError for others."""
    if len(numbers) not in (0, rows):
        raise ValueError(f"{len(numbers)} of {rows} rows are to go on; none or all can")
    return computed[: len(numbers)]


@dataclass(frozen=True)
class TritonHeadBuild:
    """A DeviceHeadBuild."""

    model: DraftHeadModel
    setup: Setup
    """The head's own Setup: sequences are as long as the head has positions for."""
    taken: int
    """Numbers that are taken of a row of the served model."""
    shape: CacheShape
    choices: AttentionChoices
    device: torch.device
    ids: Tensor | None
    """The served model's ids of the head's own; None: they are the same."""

    def __call__(self, blocks: int) -> TritonHead:
        attention = TritonAttention(self.shape, blocks, self.device, self.choices)
        return TritonHead(self.model, attention, self.device, self.ids, memory_of(self.device))

    def rehearse(self) -> None:
        """Raises StartupError where the device can't launch one of the kernels."""
        head = self(1)
        try:
            for step in rehearsed_steps(self.setup, adapters=False, media=None):
                head.hidden(head.like.new_zeros(int(step.counts.sum()), self.taken))
                self._pass(head, step.counts, before=0)
        except KernelTooLarge as error:
            raise StartupError(
                f"speculative_config: a kernel of the head takes {error.required:,} bytes of"
                f" {error.name}, and {device_name(self.device)} has {error.limit:,}"
            ) from error

    def widest_pass(self) -> None:
        self._pass(self(1), step_of(self.setup, self.setup.max_num_batched_tokens), before=0)

    def longest_pass(self) -> None:
        counts = np.ones(self.setup.max_num_seqs, dtype=np.int64)
        self._pass(self(1), counts, before=self.setup.max_model_len - 1)

    def _pass(self, head: TritonHead, counts: np.ndarray, before: int) -> None:
        """A pass after `before` tokens of each sequence, all of which have block 0."""
        rows, size = int(counts.sum()), self.setup.block_size
        batch = Batch(
            tokens=np.zeros(rows, dtype=np.int64),
            tables=[np.zeros(each, dtype=np.int64) for each in -(-(before + counts) // size)],
            starts=np.full(len(counts), before),
            counts=counts,
        )
        hidden = head.like.new_zeros(rows, head.like.shape[1])
        wanted = np.arange(min(self.setup.max_num_seqs, rows))
        head.step(batch, hidden, wanted, np.arange(rows))


def head_recipe(
    config: HeadConfig,
    files: WeightFiles,
    opening: OpenHead,
    setup: Setup,
    threads: int,
    ends: SharedEnds[Any],
) -> DeviceHeadRecipe:
    """`files`: the head's. `opening` opens its weights. `setup`: its own. `ends`: of all layers of
    the head. Raises Unable for a head that the kernels can't run, and StartupError for settings
    that can't be followed."""
    device = kernel_device(setup)
    as_filed = setup.quantization == "none"
    kept = as_filed and stays_quantised(setup.dtype, files)
    dtype = BESIDE_QUANTISED if kept else compute_dtype(setup.dtype, files, CUDA)
    cache = cache_dtype(setup.kv_cache_dtype, dtype, CUDA)
    shape = CacheShape.of(config, setup.block_size, cache, kv_layout(config, setup.max_model_len))
    choices = attention_of(
        config,
        (dtype, cache),
        batch_invariant=setup.batch_invariant,
        shared=shared_memory(device),
    )
    require(COMMON, config)
    obstacle = (
        obstacle_of(shape, choices) or crowded_router(config) or quantised_experts(setup, config)
    )
    if obstacle is not None:
        raise Unable(obstacle)

    def build() -> TritonHeadBuild:
        keep = as_filed and may_keep(setup.dtype, files, dtype)
        ops = TritonOps(
            device, dtype, batch_invariant=setup.batch_invariant, quantization=setup.quantization
        )
        positions = min(setup.max_model_len, config.max_position)
        weights = opening(dtype, device, keep_quantised=keep)
        model = DraftHeadModel(config, weights, positions, ops, ends)
        ids = None if model.ids is None else model.ids.to(device)
        taken = (NUM_AUX_LAYERS if config.beside else 1) * config.served_hidden
        own = msgspec.structs.replace(setup, max_model_len=positions)
        return TritonHeadBuild(model, own, taken, shape, choices, device, ids)

    name = str(dtype).removeprefix("torch.")
    return DeviceHeadRecipe(name, TritonAttention.block_bytes(shape), build)
