"""The interface of samplers that work on a device's queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from penstock.protocol.common import TokenLogprobs
from penstock.protocol.to_worker import Plan, SlotWork
from penstock_worker.batch.slots import Slots
from penstock_worker.sampler import SampledToken, SampleRequest
from penstock_worker.steps.feature import StepFeature


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

    def queue_score(
        self, logits: Tensor, tokens: Sequence[int], count: int
    ) -> Callable[[], list[TokenLogprobs] | None]:
        """Queues Sampler.score. Calling the result waits for it."""


class Remembers(Protocol):
    """A sampler that keeps something of slots between steps."""

    def forget(self, slot: int) -> None:
        """Drops what is kept for a slot. The slot's next request must have adjustments that know
        all tokens."""


class SamplerMemory(StepFeature):
    """What a sampler keeps of slots: it is dropped with their sequences, and where a launch has
    failed."""

    name = "sampler's memory"

    def __init__(self, sampler: Remembers, slots: Slots) -> None:
        self._sampler = sampler
        self._slots = slots

    def take(self, plan: Plan) -> None:
        for number in plan.released:
            self._sampler.forget(number)

    def undo(self, scheduled: Sequence[SlotWork]) -> None:
        for work in scheduled:
            self._sampler.forget(work.slot)

    def reset(self) -> None:
        for number in self._slots:
            self._sampler.forget(number)
