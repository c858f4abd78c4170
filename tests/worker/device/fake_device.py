"""A device that computes only when somebody waits for it, or when the test lets it.

What is queued works on values that are there by then, as on a GPU; whatever reads one before fails.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.protocol.common import TokenLogprobs
from penstock.protocol.to_worker import Copy
from penstock_worker.batch.block_copies import BlockCopies
from penstock_worker.batch.logits import in_torch
from penstock_worker.forward.interface import Batch, Forward
from penstock_worker.sampler import (
    ReferenceSampler,
    SampledToken,
    SampleRequest,
    SequenceAdjustments,
)


class FakeDevice:
    """waits: how often somebody had to wait.  broken: what every wait raises from now on."""

    def __init__(self) -> None:
        self.queued: deque[Callable[[], None]] = deque()
        self.waits = 0
        self.broken: Exception | None = None
        self.reclaimed = 0
        self.clock = 0.0

    def run(self) -> None:
        """Computes all that is queued."""
        while self.queued:
            self._next()

    def run_to(self, mark: FakeMark) -> None:
        """Computes what is queued before the mark."""
        while mark.at is None:
            self._next()

    def _next(self) -> None:
        if self.broken is not None:
            raise self.broken
        self.queued.popleft()()

    # ---- as a DeviceQueue

    def mark(self) -> FakeMark:
        return FakeMark(self)

    def numbers(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64)

    def usable(self) -> bool:
        return self.broken is None

    def reclaim(self) -> None:
        self.reclaimed += 1
        self.run()


class FakeMark:
    def __init__(self, device: FakeDevice) -> None:
        self.at: float | None = None
        self._device = device
        device.queued.append(self._pass)

    def _pass(self) -> None:
        self.at = self._device.clock

    def done(self) -> bool:
        if self.at is None and self._device.broken is not None:
            raise self._device.broken
        return self.at is not None

    def wait(self) -> None:
        if self.at is None:
            self._device.waits += 1
            self._device.run_to(self)

    def seconds_since(self, earlier: FakeMark) -> float:
        assert self.at is not None
        assert earlier.at is not None
        return self.at - earlier.at


class Later:
    """A tensor of the device: `now` is its value once the queue has come to it."""

    def __init__(self, device: FakeDevice, compute: Callable[[], Any]) -> None:
        self._device = device
        self._value: list[Any] = []
        device.queued.append(lambda: self._value.append(compute()))

    @property
    def now(self) -> Any:
        assert self._value, "it was read before the device had computed it"
        return self._value[0]

    def wait(self) -> Any:
        """The value, when the queue has come to it."""
        while not self._value:
            self._device._next()
        return self._value[0]

    def __getitem__(self, index: Any) -> Later:
        return Later(self._device, lambda: self.now[index])


class FakeNewest:
    def __init__(self, device: FakeDevice, slots: int) -> None:
        self._device = device
        self.values = torch.full((slots,), -(10**9))

    def index_copy_(self, dim: int, index: Tensor, source: Later) -> None:
        def write() -> None:
            self.values.index_copy_(dim, index, source.now)

        self._device.queued.append(write)


class FakeForward:
    """A DeviceForward around a forward pass of the host.

    batches: that were queued.  obstacle: called with each before it is queued, may raise.
    spoiled: tokens after which logits are NaN.  A token takes a second of the device's clock.
    """

    device = torch.device("cpu")

    def __init__(self, device: FakeDevice, forward: Forward, slots: int) -> None:
        self.newest = FakeNewest(device, slots)
        self.batches: list[Batch] = []
        self.obstacle: Callable[[Batch], None] = lambda batch: None
        self.spoiled: set[int] = set()
        self.cancelled = False
        self._device = device
        self._forward = forward

    @property
    def layers_done(self) -> int:
        return self._forward.layers_done

    def logits(self, batch: Batch, rows: np.ndarray) -> Later:
        self.obstacle(batch)
        # The slots' tables may have changed when the device comes to it.
        batch = replace(batch, tables=list(batch.tables))
        self.batches.append(batch)
        return Later(self._device, lambda: self._compute(batch, rows))

    def _compute(self, batch: Batch, rows: np.ndarray) -> Tensor:
        tokens = batch.tokens.copy()
        ahead = tokens < 0
        tokens[ahead] = self.newest.values.numpy()[-1 - tokens[ahead]]
        assert (tokens >= -1).all(), "a slot's newest token was not written"
        tokens[tokens < 0] = 0  # There was none to choose: any id does.
        self._device.clock += len(tokens)
        with torch.inference_mode():
            true = Batch(tokens, batch.tables, batch.starts, batch.counts)
            logits = in_torch(self._forward.logits(true, rows)).clone()
            for row, token in enumerate(tokens[rows].tolist()):
                if token in self.spoiled:
                    logits[row] = float("nan")
            return logits

    def cancel(self) -> None:
        self.cancelled = True


class FakeSampler:
    """A DeviceSampler: the reference, with each slot's penalties kept on the device.

    obstacle: called when a launch is queued; may raise.  lost: raised once by `sampled`;
    lost_scores: by what tells of a prompt.
    """

    fingerprint = "reference"
    in_order = True

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self._reference = ReferenceSampler()
        self._kept: dict[int, SequenceAdjustments] = {}
        self.obstacle: Callable[[], None] = lambda: None
        self.lost: Exception | None = None
        self.lost_scores: Exception | None = None

    def launch(self, logits: Later, asks: list[SampleRequest], slots: list[int]) -> FakeLaunched:
        rows = [self._keep(ask, slot) for ask, slot in zip(asks, slots, strict=True)]

        def choose() -> list[SampledToken]:
            choices = self._reference.sample(logits.now, rows)
            for ask, choice in zip(rows, choices, strict=True):
                if ask.adjustments is not None and choice.token is not None:
                    ask.adjustments.advance(choice.token)
            return choices

        launched = FakeLaunched(self._device, Later(self._device, choose), self)
        self.obstacle()
        return launched

    def needs_host(self, ask: SampleRequest) -> bool:
        rules = ask.adjustments
        return ask.allowed is not None or (rules is not None and rules._bad_words is not None)

    def forget(self, slot: int) -> None:
        self._kept.pop(slot, None)

    def queue_score(
        self, logits: Later, tokens: list[int], count: int
    ) -> Callable[[], list[TokenLogprobs] | None]:
        scores = Later(self._device, lambda: self._reference.score(logits.now, tokens, count))

        def told() -> list[TokenLogprobs] | None:
            lost, self.lost_scores = self.lost_scores, None
            if lost is not None:
                raise lost
            return scores.wait()

        return told

    def _keep(self, ask: SampleRequest, slot: int) -> SampleRequest:
        """The ask with the device's rules, which know of tokens that the host's don't."""
        if ask.adjustments is None:
            return ask
        if slot not in self._kept or self.needs_host(ask):
            self._kept[slot] = copy.deepcopy(ask.adjustments)
        return SampleRequest(ask.sampling, ask.index, ask.emitted, ask.allowed, self._kept[slot])


class FakeLaunched:
    def __init__(self, device: FakeDevice, choices: Later, sampler: FakeSampler) -> None:
        self._choices = choices
        self._sampler = sampler
        self.tokens = Later(
            device,
            lambda: torch.tensor([-1 if c.token is None else c.token for c in choices.now]),
        )

    def sampled(self) -> list[SampledToken]:
        lost, self._sampler.lost = self._sampler.lost, None
        if lost is not None:
            raise lost
        return self._choices.wait()


class FakeCopies:
    """Copies of KV blocks by the queue."""

    def __init__(self, device: FakeDevice, copies: BlockCopies) -> None:
        self._device = device
        self._copies = copies

    def make(self, copies: list[Copy]) -> None:
        if copies:
            self._device.queued.append(lambda: self._copies.make(copies))
