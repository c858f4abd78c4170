"""Routed experts in the host's memory: rows that go there, and results that come back."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial

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

    def compute(self, experts: CPUExperts, given: RoutedRows, out: Tensor, lane: HostLane) -> None:
        """Has the host compute rows, whose results go to `out`, [rows, width] float32 on the
        device. Waits for the device. A part of the lane's work."""
        counts, side = lane.counts, lane.side
        for first in range(0, len(given.hidden), MOST_ROWS):
            here = slice(first, min(first + MOST_ROWS, len(given.hidden)))
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
            out[here].copy_(self._results[there], non_blocking=True)
            lane.up = begun, side.mark()
            counts.up_bytes += out[here].nbytes
        counts.host_rows += given.chosen.numel()

    def _computed(self, experts: CPUExperts, there: slice) -> np.ndarray:
        rows, found, shares = (
            each[there].numpy() for each in (self._rows, self._chosen, self._shares)
        )
        # A router whose scores are no numbers may choose an expert twice; the sum is NaN.
        found[np.isnan(shares).any(1)] = np.arange(found.shape[1])
        return experts(rows, found, shares)


@dataclass(frozen=True)
class RoutedRows:
    """Rows with their experts, on the device."""

    hidden: Tensor
    """[rows, width], of any float dtype."""
    chosen: Tensor
    """[rows, active] int32, ascending."""
    shares: Tensor
    """[rows, active] float32."""

    def part(self, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Returns some rows as they go to the host."""
        return self.hidden[rows].float(), self.chosen[rows], self.shares[rows]

    def of_pairs(self, pairs: Tensor) -> RoutedRows:
        """Returns a row for each of these pairs, [n] int64, with one expert each, whose share is
        1: the kernels' sum is its result."""
        chosen = self.chosen.flatten()[pairs][:, None]
        shares = torch.ones(len(pairs), 1, dtype=torch.float32, device=chosen.device)
        return RoutedRows(self.hidden[pairs // self.chosen.shape[1]], chosen, shares)


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
        after another."""
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
            run()
            return _nothing
        future = self._threads.submit(run)
        return lambda: self.side.let_steps_wait(future.result())


def _nothing() -> None:
    """The work is done."""


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

    def begin(self, hidden: Tensor, chosen: Tensor, shares: Tensor) -> Callable[[], Tensor]:
        """Begins what `__call__` does, and returns what gives its result."""
        given, counts = RoutedRows(hidden, chosen, shares), self.streamed.chosen_often(chosen)
        if counts is not None:
            return self._divided(given, counts)
        out = torch.empty(hidden.shape, dtype=torch.float32, device=hidden.device)
        wait = self._begin(self.pinned, self.experts, given, out)

        def finish() -> Tensor:
            wait()
            return out

        return finish

    def __call__(self, hidden: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        return self.begin(hidden, chosen, shares)()

    def _begin(
        self, pinned: PinnedRows, experts: CPUExperts, given: RoutedRows, out: Tensor
    ) -> Callable[[], None]:
        return self.lane.begin(partial(pinned.compute, experts, given, out, self.lane))

    def _divided(self, given: RoutedRows, counts: np.ndarray) -> Callable[[], Tensor]:
        """The host computes rows of rare experts while the others are copied to the card."""
        division = PairsByPlace.of(given.chosen, counts, self.streamed.threshold)
        width, rest = given.hidden.shape[1], division.rest

        def empty(rows: int) -> Tensor:
            return torch.empty(rows, width, dtype=torch.float32, device=given.hidden.device)

        out, found = empty(given.chosen.numel()), empty(len(rest))
        wait = self._begin(self.pinned_pairs, self._single, given.of_pairs(rest), found)
        try:
            self.streamed.compute(division, given.hidden, out)
        except BaseException:
            wait()  # Until then, what the lane reads and writes is still its own.
            raise

        def finish() -> Tensor:
            wait()
            out.index_copy_(0, rest, found)
            return sum_experts(out, given.shares)

        return finish
