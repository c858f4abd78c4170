"""What the runner needs from whatever computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


class StepCancelled(BaseException):
    """`cancel` was called while a step was computed."""


class Unable(Exception):
    """A backend can't run this model, or not with these settings. Says why."""


@dataclass(frozen=True)
class Batch:
    """The work of one step: the rows of its sequences, one sequence after the other."""

    tokens: np.ndarray
    """[rows] int64; below 0: the newest token of slot -1 - token, which only the device has so far
    (see DeviceForward)."""
    tables: Sequence[np.ndarray]
    """Per sequence, its physical blocks in token order (int64), enough for the tokens that it has
    after the step. To be read while it is computed, as a later plan changes what lies behind."""
    starts: np.ndarray  # [sequences] tokens computed before.
    counts: np.ndarray  # [sequences] tokens computed now, each at least 1.


class Forward(Protocol):
    """Weights and KV cache of one model."""

    @property
    def layers_done(self) -> int:
        """Layers computed since the start; readable from another thread during a step."""

    def logits(self, batch: Batch, rows: np.ndarray) -> Tensor:
        """Computes every row of the batch, stores its keys and values, and returns logits.

        rows: [n] int64, may be empty.  Returns [n, vocab] float32.  A row has the same bits
        whatever else the batch holds, however its sequence was cut into chunks, and however often
        it is computed again.
        """

    def kv_blocks(self) -> list[np.ndarray]:
        """Views of the KV cache, each [blocks, bytes] uint8: row b of all is block b."""

    def cancel(self) -> None:
        """The worker leaves: a step that is being computed may raise StepCancelled."""


class DeviceForward(Forward, Protocol):
    """Of a device that works behind a queue: `logits` queues its work on torch's current stream and
    returns a tensor of the device, without waiting.

    newest: [slots] int64, of the device: each slot's newest token, or -1 where there was none to
    choose: any id does for it.  Whoever samples writes it, on the same stream, and a Batch may
    refer to it before the host has seen it.
    """

    device: torch.device
    newest: Tensor

    def blocks(self) -> Tensor:
        """A view of the KV cache: [parts, blocks, bytes] uint8 of the device; block b is [:, b]."""


@dataclass(frozen=True)
class Recipe:
    """How a model will be computed, before its weights are read."""

    backend: str  # A name for people.
    dtype: str  # Of the computation, for people.
    fingerprint: str  # All that the numbers depend on beside the model.
    block_bytes: int  # Memory of a KV block over all layers.
    threads_by_share: bool
    """`logits` has no threads of its own, and may be called from several at once, with batches that
    have no sequence in common."""
    build: Callable[[], Callable[[int], Forward]]
    """Reads the weights, and gives what makes the Forward with so many KV blocks."""


class DeviceBuild(Protocol):
    """Weights on a device. Called with a number of KV blocks, it makes the Forward."""

    def __call__(self, blocks: int) -> DeviceForward: ...

    def widest_prefill(self) -> Tensor:
        """Queues the largest step that may come, over a pool of one block; returns as many rows of
        logits as may be asked for at once, at least one for each sequence that may run."""

    def longest_decode(self) -> Tensor:
        """The same for a token of each sequence, the context as long as it may be."""


@dataclass(frozen=True)
class DeviceRecipe(Recipe):
    """Of a device that works behind a queue."""

    build: Callable[[], DeviceBuild]
    device: torch.device
    device_name: str  # For people.
    graphs: int  # So many captured ones there may be.
