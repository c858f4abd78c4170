"""Decode with CUDA graphs: a step of one token per sequence is launched as a whole.

A graph has fixed shapes, so a step is padded to a bucket, and each bucket has one graph, which is
captured when its first step comes. A bucket is a number of sequences and a longest context. The
context is part of it because the attention's grid has one program for each key split that the
bucket allows, and a single grid for the longest context of all would be mostly empty: 131,072
tokens are 256 splits, and 64 sequences with 8 KV heads make 131,072 programs per layer, which take
longer than the attention itself. With powers of two, at least half of the longest sequence's
programs have work.

Several ranks. Collectives between tensor-parallel ranks are captured with the rest, as NCCL's are
kernels on the stream. So either all of these ranks launch a graph or none does. Each decides by
what all of them have seen, the batches since their group formed; after a capture they exchange
whether it succeeded. Messages between pipeline stages stay outside of the graphs, for three
reasons: another stage may not have captured the same step, a message has as many rows as the step
and not as the bucket, and each send waits for the one before it, which isn't possible in a capture.
A graph holds the communicators of its group, and is dropped with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from penstock import logs
from penstock_kernels.triton.tiles import KEY_SPLIT
from penstock_worker.attention.triton import TritonAttention
from penstock_worker.forward.captures import CapturedWork, Captures, Work
from penstock_worker.forward.decode_inputs import DecodeInputs, decodes_text
from penstock_worker.forward.device_step import DeviceStep, HostStep
from penstock_worker.forward.interface import Batch
from penstock_worker.forward.uploads import Uploads, room
from penstock_worker.parallel.errors import GroupLost
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.states.device_moves import HostMoves
from penstock_worker.states.device_states import DeviceStates

log = logs.get(__name__)

MAX_GRAPHS = 128
"""Graphs that may be captured at a time."""
GRAPH_BYTES = 4 << 20
"""Estimated bytes of a captured graph beside its activations, which share one pool. The size of the
KV cache allows for MAX_GRAPHS of them."""
_UNUSED = 4096
"""A graph that was not used in this many decode steps may be replaced by another."""


@dataclass(frozen=True)
class Bucket:
    """The shape to which a decode step is padded."""

    sequences: int
    """Rows of the padded step."""
    context: int
    """Tokens that the longest sequence may have."""
    adapted: bool = False
    """Whether rows may have adapters."""


@dataclass(frozen=True)
class Buckets:
    """The buckets for up to `sequences` sequences of up to `context` tokens each, in KV blocks of
    `block_size` tokens."""

    sequences: int
    context: int
    block_size: int
    adapters: int = 0
    """Most that the sequences may have."""

    def of(self, batch: Batch) -> Bucket | None:
        """Returns the batch's bucket; None if it isn't a decode step, or is larger than the largest
        bucket."""
        count, longest = len(batch.counts), int(batch.starts.max()) + 1
        if not decodes_text(batch):
            return None
        if len(batch.tokens) > count or count > self.sequences or longest > self.context:
            return None
        return Bucket(self._sequences(count), self._context(longest), batch.adapters is not None)

    @property
    def largest(self) -> Bucket:
        return Bucket(self.sequences, self._context(self.context), self.adapters > 0)

    def _sequences(self, count: int) -> int:
        """Returns the bucket's size: 1, 2, 4, then multiples of 8."""
        wanted = 1 << (count - 1).bit_length() if count <= 8 else -(-count // 8) * 8
        return min(wanted, self.sequences)

    def _context(self, longest: int) -> int:
        wanted = max(KEY_SPLIT, 1 << (longest - 1).bit_length())
        return -(-min(wanted, self.context) // self.block_size) * self.block_size


@dataclass
class _Captured:
    recording: CapturedWork
    step: DeviceStep
    inputs: DecodeInputs
    used: int


class Ends(Protocol):
    """What is done outside of the graph, before and after each step."""

    def enter(self, rows: int) -> None:
        """Called before the step. `rows` is its number of sequences; the bucket may have more."""

    def leave(self, hidden: Tensor) -> None:
        """Called after the step. `hidden` is [rows, hidden], and is overwritten by the next
        step."""


class NoEnds:
    def enter(self, rows: int) -> None:
        """Does nothing."""

    def leave(self, hidden: Tensor) -> None:
        """Does nothing."""


class DecodeGraphs:
    """Computes decode steps by CUDA graphs."""

    def __init__(
        self,
        buckets: Buckets,
        attention: TritonAttention,
        uploads: Uploads,
        compute: Callable[[DeviceStep], Tensor],
        captures: Captures,
        hidden: Tensor,
        limit: int = MAX_GRAPHS,
        *,
        ranks: Ranks = ALONE,
        ends: Ends | None = None,
        states: DeviceStates | None = None,
    ) -> None:
        """`compute`: computes a step's output, [rows, hidden].
        `hidden`: [buckets.sequences, hidden], the buffer into which all graphs write their output.
        `limit`: graphs at a time.
        `ranks`: the ranks that compute the same steps.
        `states`: of a model with recurrent layers."""
        self._buckets = buckets
        self._attention = attention
        self._uploads = uploads
        self._compute = compute
        self._captures = captures
        self._hidden = hidden
        self._limit = limit
        self._ranks = ranks
        self._ends = ends or NoEnds()
        self._states = states
        self._graphs: dict[Bucket, _Captured] = {}
        self._decodes = 0
        self._able = True
        self._num_groups = len(attention.shape.groups)
        widest = self._padded(_any(self._num_groups), _ZERO, buckets.largest).arrays
        self._inputs = torch.zeros(room(widest), dtype=torch.int32, device=hidden.device)
        ranks.records(self)

    def __len__(self) -> int:
        return len(self._graphs)

    def hidden(
        self,
        batch: Batch,
        wanted: np.ndarray,
        moves: HostMoves | None = None,
        places: np.ndarray | None = None,
    ) -> Tensor | None:
        """Returns the wanted rows of the last layer's output, [wanted, hidden], or None if this
        batch can't be computed by a graph. Queues the work without waiting for the device, except
        when it captures. `moves`: what the step does with states. `places`: where the adapter of
        each sequence lies, -1 for none. Raises GroupLost."""
        self._ranks.check()
        bucket = self._buckets.of(batch) if self._able else None
        if bucket is None or len(wanted) > bucket.sequences:
            return None
        self._decodes += 1
        if not self._has_room(bucket):
            return None
        rows = len(batch.counts)
        self._ends.enter(rows)
        captured = self._graphs.get(bucket)
        if captured is None:
            host = self._padded(batch, wanted, bucket, moves, places)
            tensors = self._uploads.send(host.arrays, self._inputs)
            step = host.on_device(self._attention, tensors, self._states)
            step = self._capture(bucket, step)
        else:
            step, inputs = captured.step, captured.inputs
            captured.used = self._decodes
            self._uploads.fill(
                inputs.size,
                lambda memory: inputs.write(memory, batch, wanted, moves, places),
                self._inputs,
            )
            captured.recording.run()
        self._ends.leave(self._hidden[:rows])
        return self._hidden.index_select(0, step.wanted[: len(wanted)])

    def forget(self) -> None:
        """Drops all graphs. Doesn't wait for the device, which may be running one of them."""
        for captured in self._graphs.values():
            captured.recording.drop()
        self._graphs.clear()
        self._captures.renew()
        # Ranks that start later must come to the same decisions, so nothing may be remembered.
        self._decodes = 0
        self._able = True

    def _capture(self, bucket: Bucket, step: DeviceStep) -> DeviceStep:
        """Computes the step eagerly, which compiles its kernels, and captures it for later
        steps."""

        def work() -> None:
            self._hidden[: bucket.sequences].copy_(self._compute(step))

        work()  # On all ranks, so that their connections exist before any of them captures.
        recording = self._recorded(work)
        (failed,) = self._ranks.any([recording is None])
        if recording is not None and not failed:
            self._graphs[bucket] = _Captured(
                recording, step, self._inputs_of(bucket), self._decodes
            )
            return step
        log.warning("CUDA graphs can't be captured: decode goes on without", here=recording is None)
        if recording is not None:
            recording.drop()
        self.forget()
        self._able = False
        return step

    def _recorded(self, work: Work) -> CapturedWork | None:
        try:
            return self._captures.capture(work)
        except GroupLost:
            raise
        except Exception:
            log.warning("a CUDA graph can't be captured", exception=True)
            return None

    def _has_room(self, bucket: Bucket) -> bool:
        """Returns whether the bucket has a graph or may get one, if need be in place of an unused
        one."""
        if bucket in self._graphs or len(self._graphs) < self._limit:
            return True
        oldest = min(self._graphs, key=lambda each: self._graphs[each].used)
        if self._decodes - self._graphs[oldest].used < _UNUSED:
            return False
        self._graphs.pop(oldest).recording.drop()
        return True

    def _padded(
        self,
        batch: Batch,
        wanted: np.ndarray,
        bucket: Bucket,
        moves: HostMoves | None = None,
        places: np.ndarray | None = None,
    ) -> HostStep:
        inputs = self._inputs_of(bucket)
        memory = np.zeros(inputs.size, np.int32)
        inputs.write(memory, batch, wanted, moves, places)
        arrays = inputs.arrays(memory)
        tokens, positions, rows = arrays[:3]
        attention = self._attention.decode_layout(inputs.attention(arrays), bucket.context)
        moved, adapters = inputs.moves(arrays), inputs.adapters(arrays)
        return HostStep(tokens, positions, rows, attention, moved, adapters=adapters)

    def _inputs_of(self, bucket: Bucket) -> DecodeInputs:
        return DecodeInputs(
            bucket.sequences,
            bucket.context,
            self._buckets.block_size,
            self._num_groups,
            0 if self._states is None else self._states.pieces,
            self._buckets.adapters if bucket.adapted else 0,
        )


_ZERO = np.zeros(1, dtype=np.int64)


def _any(groups: int) -> Batch:
    """Returns some batch, for shapes."""
    more = ([_ZERO],) * (groups - 1)
    return Batch(tokens=_ZERO, tables=[_ZERO], starts=_ZERO, counts=_ZERO + 1, more_tables=more)
