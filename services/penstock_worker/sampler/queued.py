"""What the runner of a device needs of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from penstock.protocol.common import TokenLogprobs
from penstock_worker.sampler import SampledToken, SampleRequest


class Launched(Protocol):
    """Rows whose tokens are being chosen.

    tokens: [rows] int64 of the device, there as soon as its queue gets to them; -1 where a logit
    is not a finite number.
    """

    @property
    def tokens(self) -> Tensor: ...

    def choices(self) -> list[SampledToken]:
        """One for each row, after waiting for them."""


class DeviceSampler(Protocol):
    """A sampler that works on the queue of the device where the logits are.

    What a slot's next choices need of those before (counts for penalties) is kept on the device.
    """

    @property
    def numerics(self) -> str:
        """All that its numbers depend on beside the logits."""

    def launch(self, logits: Tensor, asks: list[SampleRequest], slots: list[int]) -> Launched:
        """Queues the choice of one token for each row. logits: [rows, vocab] of the device.
        slots: whose rows they are."""

    def needs_host(self, ask: SampleRequest) -> bool:
        """Whether `launch` needs the ask's rules to know of the slot's last token. Only asked where
        there are rules."""

    def forget(self, slot: int) -> None:
        """What is kept for a slot isn't its next sequence's; the next ask's rules know all."""

    def queue_score(
        self, logits: Tensor, tokens: Sequence[int], count: int
    ) -> Callable[[], list[TokenLogprobs] | None]:
        """Sampler.score, queued: what it gives waits for it."""
