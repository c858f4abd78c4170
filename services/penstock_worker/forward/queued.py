"""A forward pass on a device with a queue: everything is launched, and nothing is waited for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor

from penstock_worker.adapters.device_adapters import DeviceAdapters
from penstock_worker.attention.interface import BatchLayout
from penstock_worker.attention.triton import TritonAttention
from penstock_worker.device.memory import DeviceMemory
from penstock_worker.forward.buckets import Buckets
from penstock_worker.forward.captures import Captures
from penstock_worker.forward.device_step import DeviceStep, HostMedia, HostStep
from penstock_worker.forward.graphs import DecodeGraphs
from penstock_worker.forward.interface import Batch
from penstock_worker.forward.layer_by_layer import LayerByLayer
from penstock_worker.forward.uploads import Uploads
from penstock_worker.models.aux_hidden import AuxHidden
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.states.device_moves import HostMoves
from penstock_worker.states.device_states import DeviceStates

RowsHead = Callable[[Tensor], Tensor]
"""Maps rows of the last layer's output, [rows, hidden], to [rows, n]."""


class TritonForward(LayerByLayer):
    """A DeviceForward. `layers_done` counts layers whose work has been queued."""

    def __init__(
        self,
        model: DecoderModel,
        attention: TritonAttention,
        device: torch.device,
        *,
        slots: int,
        memory: DeviceMemory,
        ranks: Ranks = ALONE,
        head: RowsHead | None = None,
        states: DeviceStates | None = None,
        adapters: DeviceAdapters | None = None,
        aux_hidden: AuxHidden | None = None,
    ) -> None:
        """`model` and `attention` agree on layers and heads, and are on `device`.

        `slots`: the worker's number of slots, each of which has a newest token.
        `memory`: of the device.
        `ranks`: those that the model is distributed over.
        `head`: what is computed in place of logits; None for the model's logits.
        `states`: those of recurrent layers, whose memory has been taken.
        `adapters`: those of the rows, which the model's products add; None if there never are any.
        `aux_hidden`: those of the model.
        """
        super().__init__(ranks.check)
        self.device = device
        self.newest = torch.zeros(slots, dtype=torch.int64, device=device)
        self.attention = attention
        self._model = model
        self._head = head or model.logits
        self._memory = memory
        self._ranks = ranks
        self._uploads = Uploads(device)
        self._graphs: DecodeGraphs | None = None
        self._states = states
        self._adapters = adapters
        self._aux_hidden = aux_hidden
        self._captured_aux: CapturedAuxHidden | None = None
        if states is not None:
            states.keep_in(attention.blocks())

    def use_graphs(self, buckets: Buckets, captures: Captures, dtype: torch.dtype) -> None:
        """Captures the buckets' steps, and computes them by CUDA graphs from now on. `dtype` is
        that of activations. Raises GroupLost."""
        model, rows = self._model, buckets.most_rows
        ends = StageEnds(model, rows, dtype, self.device)
        captured_aux = None
        if self._aux_hidden is not None:
            shape = rows, len(self._aux_hidden.behind) * model.config.hidden_size
            captured_aux = CapturedAuxHidden(
                self._aux_hidden, torch.zeros(shape, dtype=dtype, device=self.device)
            )
        self._captured_aux = captured_aux

        def compute(step: DeviceStep) -> Tensor:
            count = len(step.tokens)
            before = None if ends.before is None else ends.before[:count]
            tokens = self._with_newest(step.tokens)
            with self._adding(step):
                found = model.through_layers(
                    tokens,
                    before,
                    self._positions(step),
                    step.attention,
                    _ignore_layer,
                    step.states,
                    encoded=step.encoded,
                )
            if captured_aux is not None:
                captured_aux.store(count)
            return found

        hidden = torch.zeros(rows, model.config.hidden_size, dtype=dtype, device=self.device)
        self._graphs = DecodeGraphs(
            buckets,
            self.attention,
            self._uploads,
            compute,
            captures,
            hidden,
            ranks=self._ranks,
            ends=ends,
            states=self._states,
        )
        self._graphs.capture()

    def capture(self) -> None:
        if self._states is not None:
            self._states.keep_in(self.attention.blocks())  # A rehearsal had a cache of its own.
        if self._graphs is not None:
            self._graphs.capture()

    def count_layer(self) -> None:
        """Counts a layer that isn't one of the decoder's. Raises what `logits` raises."""
        self._count_layer()

    def blocks(self) -> list[Tensor]:
        return [self.attention.blocks()]

    @property
    def kv_scales(self) -> bytes:
        return self.attention.scales_digest()

    def kv_blocks(self) -> list[np.ndarray]:
        return self.attention.kv_blocks()

    def logits(self, batch: Batch, rows: np.ndarray) -> Tensor:
        """Logits as Forward has them. Raises torch.OutOfMemoryError; after that the allocator's
        unused memory has been released, and the KV of the batch's tokens is undefined."""
        try:
            places = None if self._adapters is None else self._adapters.placed(batch.adapters)
            with nullcontext() if self._states is None else self._states.moved_on(batch) as moves:
                hidden = self._captured(batch, rows, moves, places)
                if hidden is None:
                    hidden = self._eager(batch, rows, moves, places)
            if not len(rows):
                vocab = self._model.config.vocab_size
                return torch.empty(0, vocab, dtype=torch.float32, device=self.device)
            return self._of_head(hidden, batch, rows, places)
        except torch.OutOfMemoryError:
            self._memory.release()
            raise

    def _of_head(
        self, hidden: Tensor, batch: Batch, rows: np.ndarray, places: np.ndarray | None
    ) -> Tensor:
        """Returns what is computed from the wanted rows, whose adapters may change the head."""
        adapters = self._adapters
        if adapters is None or places is None or not adapters.in_head(batch.adapters):
            return self._head(hidden)
        own = np.repeat(places, batch.counts)[rows]
        tiles = adapters.tiles_of(own, np.ones(len(rows), np.int64))
        with adapters.of(tiles.on_device(self._uploads.send(tiles.arrays))):
            return self._head(hidden)

    def _adding(self, step: DeviceStep) -> AbstractContextManager[None]:
        """While the context is open, products add the adapters of the step's rows."""
        return nullcontext() if self._adapters is None else self._adapters.of(step.adapters)

    def _captured(
        self,
        batch: Batch,
        rows: np.ndarray,
        moves: HostMoves | None,
        places: np.ndarray | None,
    ) -> Tensor | None:
        if self._graphs is None:
            return None
        self._go_on()
        hidden = self._graphs.hidden(batch, rows, moves, places)
        if hidden is not None:
            self._count_layers(len(self._model.layers))
            if self._captured_aux is not None:
                self._captured_aux.replayed()
        return hidden

    def _eager(
        self,
        batch: Batch,
        rows: np.ndarray,
        moves: HostMoves | None,
        places: np.ndarray | None,
    ) -> Tensor:
        media = HostMedia.of(batch.media)
        seen = None if batch.media is None else batch.media.last_seen
        layout = BatchLayout(batch.tables, batch.starts, batch.counts, batch.more_tables, seen)
        laid_out = self.attention.lay_out(layout)
        adapters = None
        if self._adapters is not None and places is not None:
            adapters = self._adapters.tiles_of(places, batch.counts)
        host = HostStep(batch.tokens, layout.positions, rows, laid_out, moves, media, adapters)
        tensors = self._uploads.send(host.arrays)
        step = host.on_device(self.attention, tensors, self._states)
        with self._adding(step):
            hidden = self._model.hidden(
                self._with_newest(step.tokens),
                self._positions(step),
                step.attention,
                self._count_layer,
                step.states,
                step.media,
                step.encoded,
            )
        return hidden.index_select(0, step.wanted)

    def _positions(self, step: DeviceStep) -> Tensor:
        """Positions of the rows among the tokens that the model has embeddings of."""
        rows = self.attention.encoder_rows
        # Padding has position 0.
        return (step.positions - rows).clamp_(min=0) if rows else step.positions

    def _with_newest(self, tokens: Tensor) -> Tensor:
        """Returns Batch.tokens, [rows] int64, in which tokens that only the device knows are filled
        in."""
        tokens = tokens.long()
        # Logits that aren't finite gave -1. Their slot has failed by now, so any id does.
        newest = self.newest[(-1 - tokens).clamp_(min=0)].clamp_(min=0)
        return torch.where(tokens < 0, newest, tokens)


def _ignore_layer() -> None:
    pass


class CapturedAuxHidden:
    """Residuals of the latest step that a graph has computed."""

    def __init__(self, aux_hidden: AuxHidden, rows: Tensor) -> None:
        """`rows`: [most rows, hidden of all layers], which all graphs write to."""
        self._aux_hidden = aux_hidden
        self._rows = rows

    def store(self, count: int) -> None:
        """Moves those of a pass over so many rows to where they stay. A part of the graph."""
        self._rows[:count].copy_(self._aux_hidden.taken(count))

    def replayed(self) -> None:
        """Called when a graph has been queued. What it takes is read before the next step is
        queued."""
        self._aux_hidden.put(self._rows)


class StageEnds:
    """Receives a stage's input before its graph runs, and sends its output afterwards."""

    def __init__(
        self, model: DecoderModel, rows: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """`rows` is the most rows of a step. `before`, [rows, hidden], is where a graph reads what
        the previous stage sent; None in the first stage."""
        self._model = model
        self.before: Tensor | None = None
        if not model.shard.place.first:
            self.before = torch.zeros(rows, model.config.hidden_size, dtype=dtype, device=device)

    def enter(self, rows: int) -> None:
        given = self._model.receive(rows)
        if given is not None and self.before is not None:
            self.before[:rows].copy_(given)

    def leave(self, hidden: Tensor) -> None:
        if not self._model.shard.place.last:
            # A clone, because it is still being sent when the next step overwrites `hidden`.
            self._model.send(hidden.clone())
