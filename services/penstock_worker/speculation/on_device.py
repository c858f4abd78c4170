"""Drafting on a device with a queue: both passes, and how much memory they take.

The passes of what drafts are queued on the same stream as the model's. Only to sample a draft is
the device waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch

from penstock_worker.device.memory import DeviceMemory
from penstock_worker.forward.heads import DeviceHead, DeviceHeadBuild
from penstock_worker.forward.interface import DeviceBuild, DeviceForward
from penstock_worker.models.aux_hidden import AuxHidden
from penstock_worker.speculation.beside import Beside, DraftPass, HeadLayers

if TYPE_CHECKING:
    from torch import Tensor


class DeviceDraftPass(DraftPass, Protocol):
    """A DraftPass on a device with a queue."""

    def blocks(self) -> list[Tensor]:
        """Returns the device's KV memory (see DeviceForward.blocks)."""


@dataclass(frozen=True)
class DeviceHeadLayers(HeadLayers):
    """The layers of a head on a device as one DeviceDraftPass."""

    layers: Sequence[DeviceHead]

    def blocks(self) -> list[Tensor]:
        return [part for each in self.layers for part in each.blocks()]


@dataclass(frozen=True)
class DeviceBeside(Beside):
    """A DeviceForward of a model and of what drafts for it."""

    served: DeviceForward
    drafts: DeviceDraftPass
    captured: tuple[DeviceForward, ...] = field(kw_only=True)
    """The passes, of both, whose steps are replayed."""

    @property
    def device(self) -> torch.device:
        return self.served.device

    @property
    def newest(self) -> Tensor:
        return self.served.newest

    def blocks(self) -> list[Tensor]:
        by_group = (part.chunk(self.groups, 1) for part in self.drafts.blocks())
        return [*self.served.blocks(), *(part for group in by_group for part in group)]

    @property
    def kv_scales(self) -> bytes:
        return self.served.kv_scales

    def capture(self) -> None:
        for each in self.captured:
            each.capture()


@dataclass(frozen=True)
class BuildWithHead:
    """A DeviceBuild of a model and its head."""

    served: DeviceBuild
    head: DeviceHeadBuild
    """Builds a layer of the head; each is like the others."""
    aux_hidden: AuxHidden
    together: Callable[[int], DeviceForward]
    """Makes the forward passes of both."""
    rows: int
    """The most rows of a step."""
    waiting: int
    """Most hidden states that wait for the head while a step is computed."""

    def __call__(self, blocks: int) -> DeviceForward:
        return self.together(blocks)

    def rehearse(self) -> None:
        self.served.rehearse()
        self.head.rehearse()

    def widest_prefill(self) -> Tensor:
        self.head.widest_pass()
        return self._with_head(self.served.widest_prefill)

    def longest_decode(self) -> Tensor:
        self.head.longest_pass()
        return self._with_head(self.served.longest_decode)

    def _with_head(self, step: Callable[[], Tensor]) -> Tensor:
        """Queues a draft step for hidden states that wait, and what becomes of its own."""
        head = self.head(1)
        waiting = head.like.new_zeros(self.waiting, head.like.shape[1])
        logits = step()
        head.hidden(self.aux_hidden.taken(self.rows))
        del waiting
        return logits


@dataclass(frozen=True)
class BuildWithDraft:
    """A DeviceBuild of a model and one that drafts for it."""

    served: DeviceBuild
    draft: DeviceBuild
    together: Callable[[int], DeviceForward]
    """Makes the forward passes of both."""
    memory: DeviceMemory

    def __call__(self, blocks: int) -> DeviceForward:
        return self.together(blocks)

    def rehearse(self) -> None:
        self.served.rehearse()
        self.draft.rehearse()

    def widest_prefill(self) -> Tensor:
        self.draft.widest_prefill()
        return self.served.widest_prefill()

    def longest_decode(self) -> Tensor:
        """Runs the longest decode step of both, with memory for the activations of both taken at
        once: the graphs of each hold theirs while the other's run."""
        self.memory.forget_peak()
        held = self.memory.allocated()
        device = self.draft.longest_decode().device
        taken = torch.empty(self.memory.peak() - held, dtype=torch.uint8, device=device)
        logits = self.served.longest_decode()
        del taken
        return logits
