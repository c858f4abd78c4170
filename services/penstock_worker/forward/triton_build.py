"""A model's weights on a device, and the steps that are rehearsed before its KV cache is sized."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock.protocol.to_worker import Setup
from penstock_worker.adapters.device_adapters import DeviceAdapters
from penstock_worker.adapters.interface import BatchAdapters
from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.triton import AttentionChoices, TritonAttention
from penstock_worker.device.memory import DeviceMemory
from penstock_worker.forward.buckets import buckets_of
from penstock_worker.forward.captures import captures_of
from penstock_worker.forward.encoder_decoder_on_device import EncoderDecoderOnDevice
from penstock_worker.forward.interface import Batch
from penstock_worker.forward.queued import RowsHead, TritonForward
from penstock_worker.media.loading import Connect, connect_nothing
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.parallel.ranks import Ranks
from penstock_worker.states.device_states import DeviceStates
from penstock_worker.steps.prompt_logprobs import ROWS as PROMPT_ROWS


@dataclass(frozen=True)
class TritonBuild:
    """A DeviceBuild."""

    model: DecoderModel
    setup: Setup
    dtype: torch.dtype
    """Of activations."""
    shape: CacheShape
    """Of the KV cache."""
    choices: AttentionChoices
    """Tiles of the attention."""
    device: torch.device
    memory: DeviceMemory
    ranks: Ranks
    head: RowsHead
    """What is computed from the last layer's rows."""
    states: DeviceStates | None = None
    """Of recurrent layers."""
    see: Connect = connect_nothing
    adapters: DeviceAdapters | None = None

    def __call__(self, blocks: int) -> TritonForward:
        forward = self._forward(blocks)
        if not self.setup.enforce_eager:
            forward.use_graphs(buckets_of(self.setup), captures_of(self.device), self.dtype)
        self.see(forward.count_layer)
        return forward

    def widest_prefill(self) -> Tensor:
        setup = self.setup
        whole, rest = divmod(setup.max_num_batched_tokens, setup.max_model_len)
        counts = [setup.max_model_len] * whole + [rest] * (rest > 0)
        return self._profile_step(np.array(counts[: setup.max_num_seqs]), before=0)

    def longest_decode(self) -> Tensor:
        count = np.ones(self.setup.max_num_seqs, dtype=np.int64)
        return self._profile_step(count, before=self.setup.max_model_len - 1)

    def _profile_step(self, counts: np.ndarray, before: int) -> Tensor:
        """Runs a step with `counts` new tokens per sequence, after `before` tokens. All sequences
        read and write block 0; the result is of no interest."""
        tokens = int(counts.sum())
        blocks = -(-(before + counts) // self.setup.block_size)
        tables = [np.zeros(each, dtype=np.int64) for each in blocks]
        batch = Batch(
            tokens=np.zeros(tokens, dtype=np.int64),
            tables=tables,
            starts=np.full(len(counts), before),
            counts=counts,
            more_tables=(tables,) * (len(self.shape.groups) - 1),
            slots=range(len(counts)),
            adapters=None if self.adapters is None else _of_all(self.adapters, len(counts)),
        )
        rows = np.arange(max(self.setup.max_num_seqs, PROMPT_ROWS)) % tokens
        if self.states is None:
            return self._forward(1).logits(batch, rows)
        with self.states.rehearsed([before] * len(counts)):
            return self._forward(1).logits(batch, rows)

    def _forward(self, blocks: int) -> TritonForward:
        rows = self.model.config.encoder_rows
        attention = TritonAttention(self.shape, blocks, self.device, self.choices, rows)
        return (EncoderDecoderOnDevice if rows else TritonForward)(
            self.model,
            attention,
            self.device,
            slots=self.setup.max_num_seqs,
            memory=self.memory,
            ranks=self.ranks,
            head=self.head,
            states=self.states,
            adapters=self.adapters,
        )


def _of_all(adapters: DeviceAdapters, sequences: int) -> BatchAdapters:
    """An adapter that changes nothing, for all sequences."""
    return BatchAdapters((adapters.blank,), np.zeros(sequences, np.int64))
