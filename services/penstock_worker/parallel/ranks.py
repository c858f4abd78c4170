"""The communication of models and runners with the other ranks of their model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

import numpy as np
import torch

from penstock_kernels.reference import rank_sum as plain_rank_sum
from penstock_worker.parallel.errors import GroupLost
from penstock_worker.parallel.place import RankPlace

if TYPE_CHECKING:
    from torch import Tensor

    from penstock_worker.parallel.group import Group
    from penstock_worker.parallel.shared_memory import Rows


# All-reduce over tensor-parallel ranks with the same bits on every rank and in any batch.
#
# Terms are added element by element in rank order, in float32, and rounded once; so it doesn't
# matter which rank adds which elements. A small tensor is all-gathered, and every rank adds all of
# it: one round. A large one takes a reduce-scatter (an all-to-all, after which each rank adds its
# share of the elements) and an all-gather of the sums: two rounds, but less data.

ROUND_BYTES = 2 << 20
"""Bytes that a rank could receive in the time that a second round costs beyond its data: some ten
microseconds at a few hundred GB/s between the GPUs of one machine. Not measured on GPUs yet; the
value doesn't affect results."""

SHARE = 16
"""A share's number of elements is a multiple of this, so that copies and kernels can use aligned
vector accesses."""


class Exchange(Protocol):
    """The collectives of `Group` that sums need."""

    def gather(self, x: Tensor) -> Tensor: ...

    def exchange(self, x: Tensor) -> Tensor: ...


def in_halves(tensor: int, size: int) -> bool:
    """Returns whether to sum in two rounds a tensor of `size` bytes on each of `tensor` ranks.

    In one round, a rank receives the size tensor - 1 times; in two rounds 2 * (tensor - 1) / tensor
    times, which for two ranks is the same.
    """
    whole, halves = (tensor - 1) * size, 2 * (tensor - 1) * size // tensor
    return whole - halves > ROUND_BYTES


def sum_whole(group: Exchange, x: Tensor) -> Tensor:
    """Sums by one all-gather."""
    return rank_sum(group.gather(x))


def sum_in_halves(group: Exchange, x: Tensor, tensor: int) -> Tensor:
    """Sums by an all-to-all of shares and an all-gather of their sums. `tensor` is the number of
    ranks."""
    flat = x.reshape(-1)
    share = -(-len(flat) // (tensor * SHARE)) * SHARE
    shares = lengthened(flat, tensor * share).view(tensor, share)
    sums = group.gather(rank_sum(group.exchange(shares)))
    return sums.view(-1)[: len(flat)].view(x.shape)


def rank_sum(parts: Tensor) -> Tensor:
    """Sums over the first dimension in its order, in float32: [ranks, *shape] -> [*shape]."""
    if not parts.is_cuda:
        return plain_rank_sum(parts)
    # Imports triton, which only workers with a GPU need to have installed.
    from penstock_kernels.triton.rowwise.rank_sum import rank_sum as device_rank_sum

    return device_rank_sum(parts)


def lengthened(x: Tensor, size: int) -> Tensor:
    """Returns x with its last dimension padded with zeros to `size`. Returns x itself where nothing
    is missing: torch's `pad` would copy it."""
    short = size - x.shape[-1]
    return torch.nn.functional.pad(x, (0, short)) if short else x


class RecordedWork(Protocol):
    """Holder of recorded work (CUDA graphs) that can be replayed in one group only."""

    def forget(self) -> None:
        """Frees all recordings at once."""


class Ranks:
    """A rank's connection to the other ranks of its model.

    The object outlives groups, as the loaded model does that uses it. Every call may raise
    GroupLost, after which only `join` and `leave` are meaningful. All ranks must make the same
    calls in the same order, and the runner makes them from one thread.

    Between devices, a call only queues the transfer. If a rank is gone, the device stalls and not
    the caller, until `cut` or `leave`.
    """

    def __init__(self, place: RankPlace | None = None) -> None:
        self.place = place or RankPlace()
        self.formed = 0  # Groups joined so far.
        self.busy = False
        """Whether the main thread waits for another rank; read by the watchdog."""
        self._group: Group | None = None
        self._abandoned = False
        self._recorded: WeakSet[RecordedWork] = WeakSet()

    def join(self, group: Group) -> None:
        self._group = group
        self._abandoned = False
        self.formed += 1

    def leave(self) -> None:
        """Leaves the group. Recorded work is dropped first: NCCL waits for the CUDA graphs that
        hold its communicators before it gives those up."""
        if self._group is None:
            return
        self.busy = True
        try:
            for recorded in self._recorded:
                recorded.forget()
            self._group.leave()
            self._group = None
        finally:
            self.busy = False

    def records(self, recorded: RecordedWork) -> None:
        """Registers an object whose recordings (CUDA graphs) are useless outside the current group.
        They are dropped when the group is left. Only a weak reference is kept."""
        self._recorded.add(recorded)

    def abandon(self) -> None:
        """Marks the group as over, so that the next call raises GroupLost. May be called from any
        thread."""
        self._abandoned = True

    def cut(self) -> None:
        """Aborts the communication of a group that is over, to free a device that waits for other
        ranks. Whatever the device computes from then on is meaningless. May be called from any
        thread; returns at once."""
        group = self._group
        if group is not None:
            group.cut()

    def check(self) -> None:
        """Raises GroupLost if the group is over. A step then need not be computed to its end, and
        what was computed may be wrong."""
        if self._abandoned:
            raise GroupLost("the session that the group was formed for is over")

    def sum(self, x: Tensor) -> Tensor:
        """All-reduce (sum) of x, [rows, size], over the tensor-parallel ranks.

        Terms are added in rank order in float32, and the sum is rounded once. So the bits are the
        same on every rank and in any batch; see `sums`.
        """
        tensor = self.place.tensor
        if tensor == 1:
            return x
        with self._communicating() as group:
            if in_halves(tensor, x.nbytes):
                return sum_in_halves(group, x, tensor)
            return sum_whole(group, x)

    def join_columns(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """All-gather of a matrix whose columns are distributed over the tensor-parallel ranks.

        `x` is this rank's part, [rows, sizes[tensor rank]]. Returns [rows, sum of sizes].
        """
        if self.place.tensor == 1:
            return x
        if not x.shape[0]:
            return x.new_empty(0, sum(sizes))
        parts = self.gather(lengthened(x, max(sizes)))
        return torch.cat([part[:, :size] for part, size in zip(parts, sizes, strict=True)], 1)

    def join_parts(self, x: Tensor, parts: Sequence[range]) -> Tensor:
        """Joins columns as `join_columns` does, where ranks may have the same columns: each has
        `parts`[tensor rank], and together they have all."""
        if self.place.tensor == 1:
            return x
        found = self.gather(lengthened(x, max(map(len, parts))))
        out = x.new_empty(x.shape[0], max(part.stop for part in parts))
        for part, theirs in zip(parts, found, strict=True):
            out[:, part.start : part.stop] = theirs[:, : len(part)]
        return out

    def gather(self, x: Tensor) -> Tensor:
        """All-gather over the tensor-parallel ranks, all of which have the same shape. Returns
        [tensor, *x.shape]."""
        with self._communicating() as group:
            return group.gather(x)

    def complete_columns(self, values: np.ndarray, parts: tuple[range, ...], first: int) -> None:
        """Gathers columns over the tensor-parallel ranks, in place: see `Group`."""
        with self._communicating() as group:
            group.complete_columns(values, parts, first)

    def exchange_rows(
        self, values: np.ndarray, held: Sequence[Rows], columns: Sequence[range]
    ) -> None:
        """Exchanges rows over the tensor-parallel ranks, in place: see `Group`."""
        with self._communicating() as group:
            group.exchange_rows(values, held, columns)

    def any(self, flags: list[bool]) -> list[bool]:
        """Returns, for each flag, whether it is true on any tensor-parallel rank of this stage."""
        if self.place.tensor == 1 or not flags:
            return flags
        with self._communicating() as group:
            return group.flags(flags)

    def least(self, values: list[int]) -> list[int]:
        """Returns the minimum of each value over all ranks of the model. Waits without a timeout,
        so it is not for use within a step."""
        if self.place.ranks == 1:
            return values
        with _Communicating(self, busy=self.busy) as group:
            return group.least(values)

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Receives what the previous stage has sent."""
        with self._communicating() as group:
            return group.receive(shape, dtype)

    def send(self, x: Tensor) -> None:
        """Sends x to the next stage. It must not be modified any more."""
        with self._communicating() as group:
            group.send(x)

    def _communicating(self) -> _Communicating:
        return _Communicating(self)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within this context, the watchdog assumes that the host may wait for a device that waits
        for other ranks."""
        if self._group is None:
            yield
            return
        with self._marked_busy():
            yield

    @contextmanager
    def _marked_busy(self) -> Iterator[None]:
        before, self.busy = self.busy, True
        try:
            yield
        finally:
            self.busy = before

    def _present(self) -> Group:
        self.check()
        if self._group is None:
            raise GroupLost("this rank belongs to no group")
        return self._group


class _Communicating:
    """Within this context, what torch raises when a rank is gone becomes GroupLost. One that runs
    out of memory while it receives keeps its own error. busy: whether the watchdog assumes that the
    host waits for other ranks.

    A class, not a generator: a step of one sequence communicates a hundred times.
    """

    __slots__ = ("_before", "_busy", "_ranks")

    def __init__(self, ranks: Ranks, *, busy: bool = True) -> None:
        self._ranks = ranks
        self._before, self._busy = ranks.busy, busy

    def __enter__(self) -> Group:
        group = self._ranks._present()
        self._ranks.busy = self._busy
        return group

    def __exit__(self, kind: object, error: BaseException | None, _trace: object) -> None:
        self._ranks.busy = self._before
        # Memory that is lacking is this rank's own failure, though torch derives it from
        # RuntimeError.
        if isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError):
            raise GroupLost(f"another rank was lost: {error}") from error


ALONE = Ranks()
"""The ranks of a model that a single rank computes."""
