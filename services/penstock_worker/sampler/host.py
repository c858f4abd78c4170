"""Adapts a Sampler, which computes at once, to the interface QueuedSampler."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from penstock.protocol.common import TokenLogprobs
from penstock_worker.sampler.interface import SampledToken, Sampler, SampleRequest


class HostSamples:
    """The tokens of a step, which are known already."""

    def __init__(self, sampled: list[SampledToken]) -> None:
        self._sampled = sampled

    @property
    def tokens(self) -> Tensor:
        """[rows] int64; -1 where there is none."""
        return torch.tensor([-1 if one.token is None else one.token for one in self._sampled])

    def sampled(self) -> list[SampledToken]:
        return self._sampled


class HostSampler:
    """Keeps no state between steps, because the host knows all tokens."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    @property
    def fingerprint(self) -> str:
        return self._sampler.fingerprint

    def launch(
        self, logits: Tensor, requests: list[SampleRequest], slots: list[int]
    ) -> HostSamples:
        return HostSamples(self._sampler.sample(logits, requests))

    def needs_host(self, request: SampleRequest) -> bool:
        return False

    def queue_score(
        self, logits: Tensor, tokens: Sequence[int], count: int
    ) -> Callable[[], list[TokenLogprobs] | None]:
        scores = self._sampler.score(logits, tokens, count)
        return lambda: scores
