"""The interface of samplers that work on a device's queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from penstock.protocol.common import TokenLogprobs
from penstock_worker.sampler import SampledToken, SampleRequest


class QueuedSamples(Protocol):
    """Tokens that are being sampled."""

    @property
    def tokens(self) -> Tensor:
        """[rows] int64 on the device, valid when its queue has reached them; -1 where a logit is
        not finite."""

    def sampled(self) -> list[SampledToken]:
        """Waits for the tokens and returns one for each row."""


class QueuedSampler(Protocol):
    """A sampler that works on the queue of the device that has the logits.

    What a slot's later tokens need of earlier ones (counts for penalties) is kept on the device.
    """

    @property
    def fingerprint(self) -> str:
        """Everything but the logits and requests that results depend on."""

    def launch(
        self, logits: Tensor, requests: list[SampleRequest], slots: list[int]
    ) -> QueuedSamples:
        """Queues the sampling of one token for each row. `logits` is [rows, vocab] on the device;
        `slots` are those of the rows."""

    def needs_host(self, request: SampleRequest) -> bool:
        """Returns whether `launch` needs adjustments that have been advanced by the slot's newest
        token. Called only for requests with adjustments."""

    def forget(self, slot: int) -> None:
        """Drops what is kept for a slot. The slot's next request must have adjustments that know
        all tokens."""

    def queue_score(
        self, logits: Tensor, tokens: Sequence[int], count: int
    ) -> Callable[[], list[TokenLogprobs] | None]:
        """Queues Sampler.score. Calling the result waits for it."""
