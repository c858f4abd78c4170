"""Steps as CUDA graphs: a step of few tokens is launched as a whole.

A graph has fixed shapes, so a step is padded to a bucket, and each bucket has one graph: decodes,
and steps of up to 512 rows that have prompts' chunks as well. All of them are captured while the
model is loaded, the largest first, so that the others find room in the memory that it has taken; a
capture waits for the device and empties the caches, so no step may have to wait for one. A bucket
is a number of rows and a longest context. The context is part of it because a step's block tables
are as wide as the bucket's, and attention's partial results have room for each split of the keys
that it allows: for 131,072 tokens and 256 sequences the tables alone would be 8 MiB that every step
copies.

Several ranks. Collectives between tensor-parallel ranks are captured with the rest, as NCCL's are
kernels on the stream. So either all of these ranks launch a graph or none does: after each capture
they exchange whether it succeeded, and all go without graphs if one didn't. Messages between
pipeline stages stay outside of the graphs, for three reasons: another stage may not have captured
the same step, a message has as many rows as the step and not as the bucket, and each send waits for
the one before it, which isn't possible in a capture. A graph holds the communicators of its group,
and is dropped with it. The ranks of the next group capture anew before they are ready.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from penstock.process import logs
from penstock_worker.attention.triton import TritonAttention
from penstock_worker.forward.buckets import Bucket, Buckets, MixedBucket
from penstock_worker.forward.captures import CapturedWork, Captures, Work
from penstock_worker.forward.device_step import DeviceStep, HostStep
from penstock_worker.forward.interface import Batch
from penstock_worker.forward.padded_inputs import InputSizes, PaddedInputs
from penstock_worker.forward.uploads import Uploads
from penstock_worker.parallel.errors import GroupLost
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.states.device_moves import HostMoves, no_moves
from penstock_worker.states.device_states import DeviceStates

log = logs.get(__name__)

_TOLD = 32
"""Captures between two lines of the log."""


@dataclass
class _Captured:
    recording: CapturedWork
    step: DeviceStep
    inputs: PaddedInputs


class Ends(Protocol):
    """The work outside of the graph, before and after each step."""

    def enter(self, rows: int) -> None:
        """Called before the step. `rows` are its own; the bucket may have more."""

    def leave(self, hidden: Tensor) -> None:
        """Called after the step. `hidden` is [rows, hidden], and is overwritten by the next
        step."""


class NoEnds:
    def enter(self, rows: int) -> None:
        """Does nothing."""

    def leave(self, hidden: Tensor) -> None:
        """Does nothing."""


class DecodeGraphs:
    """Computes decodes, and steps of few tokens, by CUDA graphs."""

    def __init__(
        self,
        buckets: Buckets,
        attention: TritonAttention,
        uploads: Uploads,
        compute: Callable[[DeviceStep], Tensor],
        captures: Captures,
        hidden: Tensor,
        *,
        ranks: Ranks = ALONE,
        ends: Ends | None = None,
        states: DeviceStates | None = None,
    ) -> None:
        """`compute`: computes a step's output, [rows, hidden].
        `hidden`: [buckets.most_rows, hidden], the buffer into which all graphs write their output.
        `ranks`: the ranks that compute the same steps.
        `states`: of a model with recurrent layers."""
        self._buckets = buckets
        self._attention = attention
        self._uploads = uploads
        self._compute = compute
        self._captures = captures
        self._hidden = hidden
        self._ranks = ranks
        self._ends = ends or NoEnds()
        self._states = states
        self._graphs: dict[Bucket | MixedBucket, _Captured] = {}
        self._sizes = InputSizes(
            buckets.block_size,
            attention.chunk_tiles,
            len(attention.shape.groups),
            0 if states is None else states.pieces,
            buckets.adapters,
        )
        widest = max(bucket.inputs(self._sizes).size for bucket in buckets.all)
        self._inputs = torch.zeros(widest, dtype=torch.int32, device=hidden.device)
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
        batch can't be computed by a graph. Queues the work without waiting for the device. `moves`:
        what the step does with states. `places`: where the adapter of each sequence lies, -1 for
        none. Raises GroupLost."""
        self._ranks.check()
        bucket = self._buckets.of(batch)
        captured = None if bucket is None else self._graphs.get(bucket)
        if captured is None or len(wanted) > len(captured.step.wanted):
            return None
        rows, inputs = len(batch.tokens), captured.inputs
        self._ends.enter(rows)
        self._uploads.fill(
            inputs.size,
            lambda memory: inputs.write(memory, batch, wanted, moves, places),
            self._inputs,
        )
        captured.recording.run()
        self._ends.leave(self._hidden[:rows])
        return self._hidden.index_select(0, captured.step.wanted[: len(wanted)])

    def capture(self) -> None:
        """Captures the graphs of all buckets that have none, the largest first. All ranks do so at
        the same time, before any of them computes a step. Waits for the device. Raises GroupLost.

        What is captured is a step of padding only, which changes no KV block and no state. If one
        can't be captured, there will be none.
        """
        missing = [bucket for bucket in self._buckets.all if bucket not in self._graphs]
        begun = time.monotonic()
        for number, bucket in enumerate(missing):
            if number % _TOLD == 0:
                log.info("capturing CUDA graphs", captured=number, of=len(missing))
            if not self._capture(bucket):
                return
        if missing:
            seconds = time.monotonic() - begun
            log.info("all CUDA graphs are captured", graphs=len(self), seconds=seconds)

    def forget(self) -> None:
        """Drops all graphs. Doesn't wait for the device, which may be running one of them."""
        for captured in self._graphs.values():
            captured.recording.drop()
        self._graphs.clear()
        self._captures.renew()

    def _capture(self, bucket: Bucket | MixedBucket) -> bool:
        """Returns whether all ranks have captured it; otherwise no graph is left."""
        inputs = bucket.inputs(self._sizes)
        host = self._nothing(inputs)
        tensors = self._uploads.send(host.arrays, self._inputs)
        step = host.on_device(self._attention, tensors, self._states)

        def work() -> None:
            self._hidden[: bucket.rows].copy_(self._compute(step))

        recording = self._recorded(work)
        (failed,) = self._ranks.any([recording is None])
        if recording is not None and not failed:
            self._graphs[bucket] = _Captured(recording, step, inputs)
            return True
        log.warning("CUDA graphs can't be captured; steps run without them", here=recording is None)
        if recording is not None:
            recording.drop()
        self.forget()
        return False

    def _recorded(self, work: Work) -> CapturedWork | None:
        try:
            return self._captures.capture(work)
        except GroupLost:
            raise
        except Exception:
            log.warning("a CUDA graph can't be captured", exception=True)
            return None

    def _nothing(self, inputs: PaddedInputs) -> HostStep:
        """A step without sequences, padded to a bucket."""
        memory = np.zeros(inputs.size, np.int32)
        moves = None if self._states is None else no_moves(self._states.pieces)
        inputs.write(memory, _no_batch(self._sizes.groups), _NONE, moves)
        return inputs.step(memory, self._attention)


_NONE = np.zeros(0, dtype=np.int64)


def _no_batch(groups: int) -> Batch:
    """A batch without sequences, for so many KV groups."""
    return Batch(_NONE, tables=[], starts=_NONE, counts=_NONE, more_tables=([],) * (groups - 1))
