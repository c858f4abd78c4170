"""What models and runners say to the other ranks of their model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

import torch
from torch import Tensor

from penstock_worker.parallel.errors import GroupLost
from penstock_worker.parallel.place import RankPlace
from penstock_worker.parallel.sums import in_halves, lengthened, sum_in_halves, sum_whole

if TYPE_CHECKING:
    from penstock_worker.parallel.group import Group


class RecordedWork(Protocol):
    """Holds what can be done again in one group only."""

    def forget(self) -> None:
        """Let go of all of it, now."""


class Ranks:
    """A rank's connection to the others. It outlives their groups, as the weights do that are held
    by whoever holds it.

    formed: how many groups it has been in.  Every call may raise GroupLost, after which only `join`
    and `leave` make sense.  All ranks must make the same calls in the same order; the runner calls
    from one thread.  Where data goes between devices, a call only queues it: that a rank is gone
    stops the device then, not the caller, until `cut` or `leave`.
    """

    def __init__(self, place: RankPlace | None = None) -> None:
        self.place = place or RankPlace()
        self.formed = 0
        self.busy = False
        """Whether another rank is being waited for; read by the watchdog."""
        self._group: Group | None = None
        self._abandoned = False
        self._recorded: WeakSet[RecordedWork] = WeakSet()

    def join(self, group: Group) -> None:
        self._group = group
        self._abandoned = False
        self.formed += 1

    def leave(self) -> None:
        """Hang up. What was recorded goes first: NCCL waits for the graphs that hold its
        communicators before it gives those up."""
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
        """What was recorded of a group (CUDA graphs) is of no use in the next: it is told to forget
        it when this one is left.  It isn't kept alive for that."""
        self._recorded.add(recorded)

    def abandon(self) -> None:
        """The group is over: the next call fails. From any thread."""
        self._abandoned = True

    def cut(self) -> None:
        """Free a device that waits for other ranks, in a group that is over: what it computes from
        then on means nothing.  From any thread; returns at once."""
        group = self._group
        if group is not None:
            group.cut()

    def check(self) -> None:
        """Raises GroupLost in a group that is over: a step needn't be computed to its end, and what
        was computed may not be so."""
        if self._abandoned:
            raise GroupLost("the session that the group was formed for is over")

    def sum(self, x: Tensor) -> Tensor:
        """The sum of each tensor rank's x, [rows, size]: in the ranks' order in float32, rounded
        once.  The same bits on every rank, in any batch; see `sums`."""
        tensor = self.place.tensor
        if tensor == 1:
            return x
        with self._talking() as group:
            if in_halves(tensor, x.nbytes):
                return sum_in_halves(group, x, tensor)
            return sum_whole(group, x)

    def join_columns(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """Each tensor rank's columns of one matrix, side by side: [rows, sum of sizes]. x: this
        one's, [rows, sizes[tensor rank]]."""
        if self.place.tensor == 1:
            return x
        if not x.shape[0]:
            return x.new_empty(0, sum(sizes))
        with self._talking() as group:
            parts = group.gather(lengthened(x, max(sizes)))
        return torch.cat([part[:, :size] for part, size in zip(parts, sizes, strict=True)], 1)

    def any(self, flags: list[bool]) -> list[bool]:
        """Each: whether any tensor rank of this stage says so."""
        if self.place.tensor == 1 or not flags:
            return flags
        with self._talking() as group:
            return group.flags(flags)

    def least(self, values: list[int]) -> list[int]:
        """Each: the least that any rank of the model has. Waits for them with patience: not for use
        inside a step."""
        if self.place.ranks == 1:
            return values
        with self._sound() as group:
            return group.least(values)

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """What the stage before has sent."""
        with self._talking() as group:
            return group.receive(shape, dtype)

    def send(self, x: Tensor) -> None:
        """To the stage after. x must not be changed any more."""
        with self._talking() as group:
            group.send(x)

    @contextmanager
    def _talking(self) -> Iterator[Group]:
        with self._seen_waiting(), self._sound() as group:
            yield group

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside, the host may wait for a device that waits for other ranks."""
        if self._group is None:
            yield
            return
        with self._seen_waiting():
            yield

    @contextmanager
    def _seen_waiting(self) -> Iterator[None]:
        before, self.busy = self.busy, True
        try:
            yield
        finally:
            self.busy = before

    @contextmanager
    def _sound(self) -> Iterator[Group]:
        """The group; what torch raises when a rank is gone becomes GroupLost. A rank without memory
        for what the others send has itself to blame."""
        self.check()
        if self._group is None:
            raise GroupLost("this rank is in no group")
        try:
            yield self._group
        except torch.OutOfMemoryError:
            raise  # This rank's own, though torch derives it from RuntimeError.
        except RuntimeError as error:
            raise GroupLost(f"another rank is gone: {error}") from error


ALONE = Ranks()
"""Of a model that one rank computes."""
