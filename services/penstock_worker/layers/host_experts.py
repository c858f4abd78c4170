"""Routed experts in the host's memory: rows that go there, and results that come back."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from penstock_kernels.cpu.routed_experts import MOST_ROWS, CPUExperts
from penstock_kernels.triton.experts.sums import sum_experts
from penstock_worker.device.side_stream import SideMark, side_queue
from penstock_worker.layers.streamed_experts import PairsByPlace, StreamedExperts, pinned_memory
from penstock_worker.metrics.hand_over import HandOverCounts


class PinnedRows:
    """Memory through which rows go to the host, and results back to the card: that of MOST_ROWS
    rows, however many there are."""

    def __init__(self, device: torch.device, width: int, active: int) -> None:
        self._rows, self._results = (
            pinned_memory((MOST_ROWS, width), torch.float32, device) for _ in range(2)
        )
        self._chosen = pinned_memory((MOST_ROWS, active), torch.int32, device)
        self._shares = pinned_memory((MOST_ROWS, active), torch.float32, device)

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        held = (self._rows, self._results, self._chosen, self._shares)
        return sum(each.nbytes for each in held)

    def compute(self, experts: CPUExperts, given: HandedRows, lane: HostLane) -> None:
        """Has the host compute rows. Waits for the device. A part of the lane's work."""
        counts, side = lane.counts, lane.side
        for first in range(0, len(given), MOST_ROWS):
            here = slice(first, min(first + MOST_ROWS, len(given)))
            there = slice(0, here.stop - here.start)
            begun = side.mark()
            for held, sent in zip(
                (self._rows, self._chosen, self._shares), given.part(here), strict=True
            ):
                held[there].copy_(sent, non_blocking=True)
                counts.down_bytes += held[there].nbytes
            down = side.mark()
            # Also for results on their way to the card, in whose place the next ones are put.
            down.synchronize()
            counts.down_seconds += begun.elapsed_time(down) / 1000
            lane.settle()
            before = time.perf_counter()
            self._results.numpy()[there] = self._computed(experts, there)
            counts.host_seconds += time.perf_counter() - before
            begun = side.mark()
            given.put(here, self._results[there])
            lane.up = begun, side.mark()
            counts.up_bytes += self._results[there].nbytes
            counts.host_rows += self._chosen[there].numel()

    def _computed(self, experts: CPUExperts, there: slice) -> np.ndarray:
        rows, found, shares = (
            each[there].numpy() for each in (self._rows, self._chosen, self._shares)
        )
        # A router whose scores are no numbers may choose an expert twice; the sum is NaN.
        found[np.isnan(shares).any(1)] = np.arange(found.shape[1])
        return experts(rows, found, shares)


class HandedRows(Protocol):
    """Rows that the host is to compute, on the device. What a part of them takes there doesn't
    depend on how many there are."""

    def __len__(self) -> int:
        """Number of rows."""

    def part(self, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Returns some rows, [n, width] float32, their experts, [n, active] int32, and shares, [n,
        active] float32."""

    def put(self, rows: slice, results: Tensor) -> None:
        """Queues the way of results, [n, width] float32 on the host, to the device."""


@dataclass(frozen=True)
class RoutedRows:
    """Rows with all their experts."""

    hidden: Tensor
    """[rows, width], of any float dtype."""
    chosen: Tensor
    """[rows, active] int32, ascending."""
    shares: Tensor
    """[rows, active] float32."""
    out: Tensor
    """[rows, width] float32, for results."""

    def __len__(self) -> int:
        return len(self.hidden)

    def part(self, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        """As HandedRows has it."""
        return self.hidden[rows].float(), self.chosen[rows], self.shares[rows]

    def put(self, rows: slice, results: Tensor) -> None:
        """As HandedRows has it."""
        self.out[rows].copy_(results, non_blocking=True)


@dataclass(frozen=True)
class RoutedPairs:
    """Pairs of a row and one of its experts, with a share of 1: the kernels' sum is its result."""

    hidden: Tensor
    """[rows, width], of any float dtype."""
    chosen: Tensor
    """[rows, active] int32."""
    pairs: Tensor
    """[n] int64: pair p belongs to row p // active."""
    out: Tensor
    """[rows * active, width] float32, for results of all pairs."""

    def __len__(self) -> int:
        return len(self.pairs)

    def part(self, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        """As HandedRows has it."""
        pairs = self.pairs[rows]
        shares = torch.ones(len(pairs), 1, dtype=torch.float32, device=pairs.device)
        hidden = self.hidden[pairs // self.chosen.shape[1]]
        return hidden.float(), self.chosen.flatten()[pairs][:, None], shares

    def put(self, rows: slice, results: Tensor) -> None:
        """As HandedRows has it."""
        there = results.to(self.out.device, non_blocking=True)
        self.out.index_copy_(0, self.pairs[rows], there)


class HostLane:
    """The one thread, and the device's one queue, in which the host computes experts' rows while
    the thread that computes steps goes on."""

    def __init__(self, device: torch.device, counts: HandOverCounts) -> None:
        self.side = side_queue(device)
        self.counts = counts
        self.up: tuple[SideMark, SideMark] | None = None
        """Before and after the latest results' way up."""
        self._threads = ThreadPoolExecutor(1, "experts") if self.side.beside else None

    def settle(self) -> None:
        """Counts the latest results' way up, which has been waited for."""
        if self.up is not None:
            begun, done = self.up
            self.counts.up_seconds += begun.elapsed_time(done) / 1000
            self.up = None

    def begin(self, work: Callable[[], None]) -> Callable[[], None]:
        """Begins work after all that is queued on the current stream, and returns what is to be
        called where its results are needed: it raises what the work has raised. Works are done one
        after another.

        What the work uses is kept until steps wait for it: on the host it ends before the device
        has run what it has queued, and the current stream would give its memory to the next
        tensor."""
        after = self.side.computed()

        def run() -> SideMark:
            with self.side.queueing(after):
                try:
                    work()
                except BaseException:
                    self.side.mark().synchronize()  # What it has queued may write memory of others.
                    raise
                return self.side.mark()

        if self._threads is None:
            mark = run()

            def done() -> None:
                self.side.let_steps_wait(mark)
                _keep(work)

            return done
        future = self._threads.submit(run)

        def wait() -> None:
            self.side.let_steps_wait(future.result())
            _keep(work)

        return wait


def _keep(_: Callable[[], None]) -> None:
    """Whoever calls it in the end has what the work uses until then."""


@dataclass(frozen=True)
class HostExperts:
    """Experts in the host's memory."""

    experts: CPUExperts
    pinned: PinnedRows
    pinned_pairs: PinnedRows
    """For rows with one expert."""
    streamed: StreamedExperts
    lane: HostLane

    def __post_init__(self) -> None:
        self._single  # noqa: B018  Made while the model is loaded.

    @cached_property
    def _single(self) -> CPUExperts:
        return replace(self.experts, active=1)

    @property
    def together(self) -> int:
        """How many experts the card computes together, at most; or as many as a row has, if that is
        more."""
        return max(self.experts.active, self.streamed.together)

    def begin(self, hidden: Tensor, chosen: Tensor, shares: Tensor) -> Callable[[], Tensor]:
        """Begins what `__call__` does, and returns what gives its result."""
        counts = self.streamed.chosen_often(chosen)
        if counts is not None:
            return self._divided(hidden, chosen, shares, counts)
        out = torch.empty(hidden.shape, dtype=torch.float32, device=hidden.device)
        given = RoutedRows(hidden, chosen, shares, out)
        wait = self._begin(self.pinned, self.experts, given)

        def finish() -> Tensor:
            wait()
            return out

        return finish

    def __call__(self, hidden: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        return self.begin(hidden, chosen, shares)()

    def _begin(
        self, pinned: PinnedRows, experts: CPUExperts, given: HandedRows
    ) -> Callable[[], None]:
        return self.lane.begin(partial(pinned.compute, experts, given, self.lane))

    def _divided(
        self, hidden: Tensor, chosen: Tensor, shares: Tensor, counts: np.ndarray
    ) -> Callable[[], Tensor]:
        """The host computes rows of rare experts while the others are copied to the card. `counts`:
        rows of each expert, [experts]."""
        division = PairsByPlace.of(chosen, counts, self.streamed.threshold)
        pairs = chosen.numel(), hidden.shape[1]
        out = torch.empty(pairs, dtype=torch.float32, device=hidden.device)
        rare = RoutedPairs(hidden, chosen, division.rest, out)
        wait = self._begin(self.pinned_pairs, self._single, rare)
        try:
            self.streamed.compute(division, hidden, out, min(MOST_ROWS, len(rare)))
        except BaseException:
            wait()  # Until then, what the lane reads and writes is still its own.
            raise

        def finish() -> Tensor:
            wait()
            return sum_experts(out, shares)

        return finish
