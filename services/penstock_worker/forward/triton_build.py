"""A model's weights on a device, and the steps that are rehearsed before its KV cache is sized."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock.errors import StartupError
from penstock.protocol.to_worker import Setup
from penstock_kernels.triton.attention.kv_scales import KVScales
from penstock_kernels.triton.compilations import KernelTooLarge
from penstock_worker.adapters.device_adapters import DeviceAdapters
from penstock_worker.attention.encoded import Division
from penstock_worker.attention.flash_attention import FlashAttention
from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.triton import (
    AttentionChoices,
    TritonAttention,
    kinds_of_heads,
)
from penstock_worker.device.memory import DeviceMemory
from penstock_worker.forward.buckets import buckets_of
from penstock_worker.forward.captures import captures_of
from penstock_worker.forward.decoded_part import decoded_part
from penstock_worker.forward.device import device_name
from penstock_worker.forward.interface import Batch
from penstock_worker.forward.queued import RowsHead, TritonForward
from penstock_worker.forward.rehearsal import (
    MediaSteps,
    RehearsedStep,
    rehearsed_steps,
    step_of,
)
from penstock_worker.media.loading import Connect, connect_nothing
from penstock_worker.models.aux_hidden import AuxHidden
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
    """Dtype of activations."""
    shape: CacheShape
    """Sizes of the KV cache."""
    choices: AttentionChoices
    """Tiles of the attention."""
    device: torch.device
    memory: DeviceMemory
    ranks: Ranks
    head: RowsHead
    """Computes the result from the last layer's rows."""
    states: DeviceStates | None = None
    """States of recurrent layers; None: there are none."""
    see: Connect = connect_nothing
    adapters: DeviceAdapters | None = None
    aux_hidden: AuxHidden | None = None
    """Hidden states that each pass keeps for a draft head; None for none."""
    media: MediaSteps | None = None
    """What encodes media; None if the model takes none."""
    scales: tuple[KVScales, ...] = ()
    """Scales of the KV cache, for each layer; none: all are 1."""
    flash: FlashAttention | None = None
    """What computes long chunks; None: nothing else does."""
    on_trial: Callable[[], AbstractContextManager[None]] = nullcontext
    """What is open while dummy steps run."""

    def __call__(self, blocks: int) -> TritonForward:
        forward = self._forward(blocks)
        if not self.setup.enforce_eager:
            buckets = buckets_of(self.setup, self.model.config)
            forward.use_graphs(buckets, captures_of(self.device), self.dtype)
        self.see(forward.count_layer)
        return forward

    def rehearse(self) -> None:
        """Raises StartupError where the device can't launch one of the kernels."""
        adapters = self.adapters is not None
        try:
            for step in rehearsed_steps(self.setup, adapters=adapters, media=self.media):
                # Also of the head's kernels: for as many rows as there are.
                wanted = min(self._most_wanted, step.counts.sum())
                self._profile_step(step, before=0, wanted=wanted)
        except KernelTooLarge as error:
            raise StartupError(
                f"a kernel of this model takes {error.required:,} bytes of {error.name}, and"
                f" {device_name(self.device)} has {error.limit:,}"
            ) from error

    def widest_prefill(self) -> Tensor:
        counts = step_of(self.setup, self.setup.max_num_batched_tokens)
        return self._profile_step(RehearsedStep(counts, adapted=True), before=0)

    def longest_decode(self) -> Tensor:
        longest = self.setup.max_model_len
        for counts in self._captured_counts:
            self._profile_step(RehearsedStep(counts, adapted=True), longest - counts[0], wanted=1)
        counts = np.ones(self.setup.max_num_seqs, dtype=np.int64)
        return self._profile_step(RehearsedStep(counts, adapted=True), before=longest - 1)

    @property
    def _captured_counts(self) -> list[np.ndarray]:
        """Returns the new tokens of each sequence of the largest steps that are captured in
        addition to decodes: chunks that fill the rows, and chunks that have partial results of
        attention."""
        rows = buckets_of(self.setup, self.model.config).mixed_rows
        if self.setup.enforce_eager or not rows:
            return []
        sequences = min(self.setup.max_num_seqs, rows[-1])
        each = min(rows[-1] // sequences, self.setup.max_model_len)
        heads, *_ = kinds_of_heads(self.shape)
        split = min(each, self.choices(heads).split_queries)
        return [np.full(sequences, count) for count in dict.fromkeys((each, split))]

    @property
    def _most_wanted(self) -> int:
        """Rows whose logits are held at once."""
        return max(self.setup.max_num_seqs, PROMPT_ROWS)

    def _profile_step(self, step: RehearsedStep, before: int, wanted: int | None = None) -> Tensor:
        """Runs a step after `before` tokens of each sequence. All sequences read and write block 0;
        the result isn't used. `wanted`: rows of logits; None: as many as there may be."""
        counts, adapters = step.counts, self.adapters if step.adapted else None
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
            media=step.media,
            adapters=None if adapters is None else adapters.on_all(len(counts)),
        )
        rows = np.arange(self._most_wanted if wanted is None else wanted) % tokens
        with self.on_trial():
            if self.states is None:
                return self._forward(1).logits(batch, rows)
            with self.states.rehearsed([before] * len(counts)):
                return self._forward(1).logits(batch, rows)

    def run_alone(self, batch: Batch, blocks: int) -> TritonAttention:
        """Computes one step of new sequences, over a cache of so many blocks that is returned."""
        forward, none = self._forward(blocks), np.empty(0, np.int64)
        if self.states is None:
            forward.logits(batch, none)
        else:
            with self.states.rehearsed([0] * len(batch.counts)):
                forward.logits(batch, none)
        return forward.attention

    def _forward(self, blocks: int) -> TritonForward:
        rows = self.model.config.encoder_rows
        attention = TritonAttention(
            self.shape, blocks, self.device, self.choices, rows, self.scales, self.flash
        )
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
            aux_hidden=self.aux_hidden,
        )


class EncoderDecoderOnDevice(TritonForward):
    """The forward pass on CUDA of a decoder that attends to an encoder's output.

    Rows of encoders are stored, each layer's keys and values of them, in front of those of the
    decoder's tokens. Rows of decoders go through the layers as any model's do, decodes as CUDA
    graphs.
    """

    def logits(self, batch: Batch, rows: np.ndarray) -> Tensor:
        """Logits as Forward has them. Those of an encoder's rows are zeros."""
        encoder_rows = self.attention.encoder_rows
        division = Division.of(batch.starts, batch.counts, encoder_rows)
        if len(division.decoded) == len(batch.tokens):
            return super().logits(batch, rows)
        self._store(batch)
        logits = torch.zeros(
            len(rows), self._model.config.vocab_size, dtype=torch.float32, device=self.device
        )
        if not len(division.decoded):
            return logits
        places, found = division.find(rows)
        decoded = super().logits(decoded_part(batch, division, encoder_rows), found)
        (where,) = self._uploads.send([places])
        return logits.index_copy_(0, where.long(), decoded)

    def _store(self, batch: Batch) -> None:
        media = batch.media
        if media is None or media.embeddings is None:
            return
        try:
            (slots,) = self._uploads.send([self._slots(batch)[media.rows]])
            encoding = media.embeddings.to(self._model.dtype)
            self._model.store_encoded(encoding, self.attention.stored_rows(slots))
        except torch.OutOfMemoryError:
            self._memory.release()
            raise

    def _slots(self, batch: Batch) -> np.ndarray:
        """Returns where each row of the batch is stored, [rows] int64."""
        size = self.attention.shape.block_size
        found = []
        for table, start, count in zip(
            batch.tables, batch.starts.tolist(), batch.counts.tolist(), strict=True
        ):
            at = np.arange(start, start + count)
            found.append(table[at // size] * size + at % size)
        return np.concatenate(found)
