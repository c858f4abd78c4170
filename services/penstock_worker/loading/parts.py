"""What a generating model's steps are made of, loaded where it computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock_worker.batch.block_copies import BlockCopies, Copies
from penstock_worker.device.queue import DeviceQueue
from penstock_worker.forward.interface import Forward
from penstock_worker.loading.kernels import NO_KERNELS, LoadedKernels
from penstock_worker.metrics.phases import UNWATCHED, Phases
from penstock_worker.sampler.interface import QueuedSampler
from penstock_worker.sampler.memory import Remembers
from penstock_worker.steps.generate import Likeliest
from penstock_worker.steps.runner import ShareThreads
from penstock_worker.stores.cache import StoredCache

if TYPE_CHECKING:
    from torch import Tensor

    from penstock_worker.device.block_copies import DeviceBlockCopies


def _nothing() -> None:
    """Checks nothing."""


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """Parts of steps; those that are `timed` count the time of their phase."""

    device: str  # Its name, as the engine core gets it.
    queue: DeviceQueue
    stage_queue: DeviceQueue  # Of a stage before the last.
    forward: Forward
    timed_forward: Forward
    sampler: QueuedSampler
    timed_sampler: QueuedSampler
    memory: Remembers | None = None  # The sampler, if it keeps something of slots.
    copies: BlockCopies | DeviceBlockCopies
    timed_copies: Copies
    copy_seconds: float
    blocks: int
    cache: StoredCache
    calculated: str = ""  # What outputs depend on besides the recipe and the sampler.
    scales: str = ""  # What stored KV depends on besides the fingerprint.
    kernels: LoadedKernels = NO_KERNELS
    newest: Tensor | None = None
    likeliest: Likeliest | None = None
    check: Callable[[], None] = _nothing
    threads: ShareThreads | None = None
    phases: Phases = UNWATCHED  # For the queue's own clock.
    runs_ahead: bool = False
    goes_on: bool = False
    give_back: Callable[[], None] | None = None
    told: Mapping[str, object] = field(default_factory=dict)  # For the log.
