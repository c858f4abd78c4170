"""The interface between the runner and the backends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import torch

from penstock.model.config import ModelConfig
from penstock.model.kv_layout import KVGroup
from penstock.model.mechanisms import OF_PICTURES, mechanisms
from penstock.protocol.to_worker import Setup
from penstock_worker.adapters.adaptable import adaptable_modules, expert_modules
from penstock_worker.adapters.interface import HoldsAdapters
from penstock_worker.batch.inputs import Batch as Batch
from penstock_worker.batch.logits import Logits
from penstock_worker.models.aux_hidden import AuxHidden

if TYPE_CHECKING:
    from torch import Tensor

    from penstock_worker.media.encoder import MediaEncodings
    from penstock_worker.states.live_states import LiveStates
    from penstock_worker.steps.feature import StepFeature

WITHOUT_PICTURES = "; with --language-model-only it has not"


class StepCancelled(BaseException):
    """Raised out of a step during which `cancel` was called."""


class Unable(Exception):
    """A backend can't run this model, or not with these settings. The message says why."""


def require(has: frozenset[str], config: ModelConfig) -> None:
    """Raises Unable if the model needs mechanisms that a backend doesn't have."""
    missing = mechanisms(config) - has
    if missing:
        also = WITHOUT_PICTURES if missing <= OF_PICTURES else ""
        raise Unable(f"the model has {', '.join(sorted(missing))}{also}")


def require_adaptable(config: ModelConfig, setup: Setup) -> None:
    """Raises Unable for a model that adapters can change nothing in."""
    if not adaptable_modules(config) and not (setup.lora_experts and expert_modules(config)):
        raise Unable("the model has no module that adapters can change (enable_lora)")


def require_no_adapters(setup: Setup) -> None:
    """Raises Unable if the setup asks for adapters, for a backend that has none."""
    if setup.max_loras:
        raise Unable("it doesn't support adapters (enable_lora)")


class Forward(Protocol):
    """The weights and the KV cache of one model."""

    @property
    def layers_done(self) -> int:
        """Layers computed since the start. May be read from another thread during a step."""

    def logits(self, batch: Batch, rows: np.ndarray) -> Logits:
        """Computes every row of the batch, stores its keys and values, and returns logits.

        `rows` is [n] int64 and may be empty. Returns [n, vocab] float32. A row has the same bits
        whatever else is in the batch, however its sequence was divided into chunks, and however
        often it is computed again.
        """

    def kv_blocks(self) -> list[np.ndarray]:
        """Returns views of the KV cache, each [blocks, bytes] uint8. Row b of all of them together
        is block b."""

    def cancel(self) -> None:
        """Called when the worker stops: a step that is being computed may raise StepCancelled."""


@runtime_checkable
class LikeliestForward(Protocol):
    """A forward pass that can leave out the logits, where only the most likely tokens are needed of
    them."""

    @property
    def finds_likeliest(self) -> bool:
        """Whether `likeliest` may be called."""

    def likeliest(self, batch: Batch, rows: np.ndarray) -> np.ndarray:
        """Computes what `logits` does, and returns, [n] int32, the token of each row's largest
        logit, of equal ones the lowest; -1 where a logit is not finite."""


class DeviceForward(Forward, Protocol):
    """The forward pass of a device with a queue: `logits` queues its work on torch's current stream
    and returns a tensor on the device, without waiting."""

    @property
    def device(self) -> torch.device: ...

    @property
    def newest(self) -> Tensor:
        """[slots] int64 on the device: the newest token of each slot, or -1 if its logits were not
        finite, in which case any id may be used instead. The sampler writes it on the same stream,
        and a Batch may refer to it before the host has seen it."""

    def blocks(self) -> list[Tensor]:
        """Returns views of the KV cache, each [parts, blocks, bytes] uint8 on the device. Block b
        is [:, b] of all of them together."""

    @property
    def kv_scales(self) -> bytes:
        """Digest of the scales that what the KV cache stores is multiplied by; empty if all are
        1."""

    def capture(self) -> None:
        """Captures the steps that will be replayed, where that isn't done or was lost with a group.
        All ranks call it at the same time. Raises GroupLost."""


@dataclass(frozen=True)
class Recipe:
    """How a model will be computed, known before its weights are read."""

    backend: str  # Name of the backend, for logs.
    dtype: str  # Type of the computation, for logs.
    fingerprint: str  # Everything but the model that the numbers depend on.
    block_bytes: int  # Size of a KV block over all layers of a group.
    threads_by_share: bool
    """Whether `logits` has no threads of its own. It may then be called from several threads at
    once, with batches that have no sequence in common."""
    kv_groups: tuple[KVGroup, ...]  # Each has a table of its own in a Batch.
    build: Callable[[], Callable[[int], Forward]]
    """Reads the weights, and returns a function that makes the Forward for a given number of KV
    blocks."""
    states: LiveStates | None = field(default=None, kw_only=True)
    """The states of sequences in recurrent layers, whose memory the Forward takes."""
    media: MediaEncodings | None = field(default=None, kw_only=True)
    """What encodes and keeps media; None if the model takes none."""
    adapters: HoldsAdapters | None = field(default=None, kw_only=True)
    """What keeps loaded adapters; None if the setup asks for none."""
    hand_over: StepFeature | None = field(default=None, kw_only=True)
    """What metrics see of experts in the host's memory beside a device; None: there are none."""
    aux_hidden: AuxHidden | None = field(default=None, kw_only=True)
    """Hidden states that each pass keeps for a draft head; None if the setup asks for none, or the
    backend gives nothing but logits."""


class DeviceBuild(Protocol):
    """Weights on a device. Called with a number of KV blocks, it makes the Forward."""

    def __call__(self, blocks: int) -> DeviceForward: ...

    def rehearse(self) -> None:
        """Queues steps, none larger than the largest, that launch every variant of the kernels over
        a KV cache of one block."""

    def widest_prefill(self) -> Tensor:
        """Queues the largest possible step over a KV cache of one block. Returns as many rows of
        logits as may be requested at once, at least one for each sequence that may run."""

    def longest_decode(self) -> Tensor:
        """Queues a step with one token of each sequence at the longest possible context, over a KV
        cache of one block, and returns logits as `widest_prefill` does; and queues the longest of
        other steps that are captured."""


@dataclass(frozen=True)
class DeviceRecipe(Recipe):
    """The recipe for a device with a queue."""

    build: Callable[[], DeviceBuild]
    device: torch.device
    device_name: str  # For logs and status.
    graphs: int  # CUDA graphs that will be captured.
