"""Samplers that work on a queue, as steps need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from penstock.protocol.common import TokenLogprobs
from penstock_worker.sampler import SampledToken, SampleRequest


class QueuedSamples(Protocol):
    """Rows whose tokens are being chosen."""

    @property
    def tokens(self) -> Tensor:
        """[rows] int64 of the device, there as soon as its queue gets to them; -1 where a logit is
        not a finite number."""

    def sampled(self) -> list[SampledToken]:
        """One for each row, after waiting for them."""


class QueuedSampler(Protocol):
    """A sampler that works on the queue of the device where the logits are.

    What a slot's next choices need of those before (counts for penalties) is kept on the device.
    """

    @property
    def fingerprint(self) -> str:
        """All that its numbers depend on beside the logits."""

    def launch(
        self, logits: Tensor, requests: list[SampleRequest], slots: list[int]
    ) -> QueuedSamples:
        """Queues the choice of one token for each row. logits: [rows, vocab] of the device.
        slots: whose rows they are."""

    def needs_host(self, request: SampleRequest) -> bool:
        """Whether `launch` needs the request's adjustments to know of the slot's last token. Only
        asked where there are adjustments."""

    def forget(self, slot: int) -> None:
        """What is kept for a slot isn't its next sequence's; the next request's adjustments know
        all."""

    def queue_score(
        self, logits: Tensor, tokens: Sequence[int], count: int
    ) -> Callable[[], list[TokenLogprobs] | None]:
        """Sampler.score, queued: what it gives waits for it."""
