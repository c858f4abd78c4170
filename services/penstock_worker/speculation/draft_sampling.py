"""Chooses drafts by the logits of what drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec
from torch import Tensor

from penstock.protocol.common import TokenSampling
from penstock_worker.batch.slots import Slot
from penstock_worker.sampler import SampleRequest
from penstock_worker.sampler.queued import QueuedSampler


@dataclass(frozen=True)
class DraftLimits:
    """What drafts are asked for at most."""

    drafts: int
    """Tokens after a sequence's."""
    positions: int
    """Tokens that a sequence may have; after them, nothing is drafted."""
    vocab: int
    """Ids that both models have are below this."""
    ends: frozenset[int]
    """Ids after which nothing is drafted, as sequences mostly end there."""
    catch_up: int
    """Tokens, of all sequences together, that one step computes beside those that the served model
    computes in it."""


class Drafted(Protocol):
    """A sequence that is drafted for."""

    @property
    def number(self) -> int: ...  # Its slot's.
    @property
    def slot(self) -> Slot: ...
    @property
    def sampling(self) -> TokenSampling: ...
    @property
    def most(self) -> int: ...
    @property
    def drafts(self) -> list[int]: ...


AnyDrafted = TypeVar("AnyDrafted", bound=Drafted)


class DraftSampler:
    """Samples with the draws that the served model is going to sample with."""

    def __init__(self, sampler: QueuedSampler, limits: DraftLimits) -> None:
        self._sampler = sampler
        self._limits = limits

    def sample(self, asking: Sequence[AnyDrafted], logits: Tensor) -> list[AnyDrafted]:
        """Appends a draft to each of these, by its row of logits, and returns those that are to get
        another. Waits for a device."""
        if logits.shape[1] > self._limits.vocab:
            logits = logits[:, : self._limits.vocab].contiguous()
        requests = [
            SampleRequest(each.sampling, each.slot.index, each.slot.emitted + len(each.drafts))
            for each in asking
        ]
        slots, going_on = [each.number for each in asking], []
        found = self._sampler.launch(logits, requests, slots).sampled()
        for each, sampled in zip(asking, found, strict=True):
            if sampled.token is None:
                continue  # The logits were not finite.
            each.drafts.append(sampled.token)
            if len(each.drafts) < each.most and sampled.token not in self._limits.ends:
                going_on.append(each)
        return going_on


def without_logprobs(sampling: TokenSampling) -> TokenSampling:
    if sampling.logprobs is None:
        return sampling
    return msgspec.structs.replace(sampling, logprobs=None)
