"""A device that waits for a rank that is gone: who frees it, and in which order things go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from penstock_worker.parallel import membership as module
from penstock_worker.parallel.group import Group
from penstock_worker.parallel.membership import Membership
from penstock_worker.parallel.place import RankPlace
from penstock_worker.parallel.ranks import Ranks


class Communicator:
    """A communicator that behaves like one of NCCL's: aborting it frees the device at once, and
    returns when nobody holds it, nor runs on another of the group's.

    freed: the device goes on.  held: by graphs.
    """

    def __init__(self, meeting: threading.Barrier) -> None:
        self.freed = threading.Event()
        self.unheld = threading.Event()
        self._meeting = meeting

    def abort(self) -> None:
        if self.freed.is_set():
            return
        self.freed.set()
        self._meeting.wait(60)
        if not self.unheld.wait(60):
            raise TimeoutError("a graph holds this communicator")


class OnDevice(Group):
    """A group of a CUDA device, without one."""

    def __init__(self) -> None:
        meeting = threading.Barrier(3)
        made = [Communicator(meeting) for _ in range(3)]
        self.communicators = made
        self.place = RankPlace(2, 3, 2)
        self._device = torch.device("cuda")
        self._tensor, self._before, self._after = made
        self._flags = None
        self._sent = self._store = None


class Graphs:
    """What DecodeGraphs is to Ranks."""

    def __init__(self, group: OnDevice) -> None:
        self._group = group
        self.forgotten = False

    def forget(self) -> None:
        self.forgotten = True
        for each in self._group.communicators:
            each.unheld.set()


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Ranks], Membership]]:
    """A membership in a group; `ended` of it says whether the process would have."""
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(module, "STUCK_SECONDS", 1000.0)
    made: list[Membership] = []

    def make(ranks: Ranks) -> Membership:
        ended = threading.Event()
        membership = Membership("127.0.0.1", end_process=ended.set)
        membership.ended = ended
        membership._ranks, membership._member = ranks, True
        made.append(membership)
        return membership

    yield make
    for each in made:
        each._left.set()


def test_the_watchdog_frees_a_device_and_leaving_drops_the_graphs_first(
    member: Callable[[Ranks], Membership],
) -> None:
    ranks, group = Ranks(RankPlace(2, 3, 2)), OnDevice()
    ranks.join(group)
    graphs = Graphs(group)
    ranks.records(graphs)
    membership = member(ranks)
    membership.computing = lambda: True
    membership.over()
    # The main thread wants the end of a step, which comes when the device is free.
    assert all(each.freed.wait(60) for each in group.communicators)
    assert not graphs.forgotten
    membership.leave()
    assert graphs.forgotten
    assert not membership.ended.is_set()


def test_nobody_is_cut_off_who_does_not_wait(member: Callable[[Ranks], Membership]) -> None:
    ranks, group = Ranks(RankPlace(2, 3, 2)), OnDevice()
    ranks.join(group)
    membership = member(ranks)
    membership.over()
    time.sleep(0.3)
    assert not any(each.freed.is_set() for each in group.communicators)
    for each in group.communicators:
        each.unheld.set()
    membership.leave()
    assert all(each.freed.is_set() for each in group.communicators)


def test_who_waits_for_a_device_while_it_loads_is_cut_off(
    member: Callable[[Ranks], Membership],
) -> None:
    ranks, group = Ranks(RankPlace(2, 3, 2)), OnDevice()
    ranks.join(group)
    membership = member(ranks)
    with ranks.waiting():
        membership.over()
        assert all(each.freed.wait(60) for each in group.communicators)
    assert not ranks.busy
    for each in group.communicators:
        each.unheld.set()
    membership.leave()


def test_who_hangs_while_hanging_up_is_ended(
    member: Callable[[Ranks], Membership], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STUCK_SECONDS", 0.5)
    ranks, group = Ranks(RankPlace(2, 3, 2)), OnDevice()
    ranks.join(group)
    membership = member(ranks)
    membership.over()
    leaving = threading.Thread(target=membership.leave, daemon=True)
    leaving.start()
    assert membership.ended.wait(60)
    for each in group.communicators:
        each.unheld.set()
    leaving.join(60)
    assert not leaving.is_alive()


def test_a_host_is_not_cut_off() -> None:
    group = OnDevice()
    group._device = torch.device("cpu")
    group.cut()
    assert not any(each.freed.wait(0.05) for each in group.communicators)
