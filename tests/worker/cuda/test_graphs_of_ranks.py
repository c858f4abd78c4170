"""Graphs where several ranks compute: all launch one, or none does."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock_worker.forward.captures import Work
from penstock_worker.forward.device_step import DeviceStep
from penstock_worker.forward.graphs import Buckets, DecodeGraphs
from penstock_worker.forward.uploads import Uploads
from penstock_worker.parallel.errors import GroupLost
from penstock_worker.parallel.ranks import Ranks
from tests.interpreted_triton import DEVICE
from tests.worker.cuda.small_models import GROUPED, queued
from tests.worker.cuda.test_graphs import small
from tests.worker.parallel.together import Formed

pytestmark = pytest.mark.timeout(240)

ROW = np.array([0])


@dataclass
class Recorded:
    """A recording that knows whether its group was there when it was dropped."""

    work: Work
    ranks: Ranks
    runs: int = 0
    dropped: bool = False

    def run(self) -> None:
        assert not self.dropped
        self.runs += 1
        self.work()

    def drop(self) -> None:
        assert self.ranks._group is not None, "dropped after the connections that it holds"
        assert not self.dropped
        self.dropped = True


@dataclass
class Recorder:
    """able: whether a capture succeeds."""

    ranks: Ranks
    able: bool = True
    made: list[Recorded] = field(default_factory=list)
    tried: int = 0
    renewed: int = 0

    def capture(self, work: Work) -> Recorded:
        self.tried += 1
        if not self.able:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.made.append(Recorded(work, self.ranks))
        return self.made[-1]

    def renew(self) -> None:
        self.renewed += 1


class Rank:
    """Sums tokens over the ranks."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks, self.captures = ranks, Recorder(ranks)
        attention = queued(GROUPED).attention
        self.graphs = DecodeGraphs(
            Buckets(8, 640, 4),
            attention,
            Uploads(DEVICE),
            self.compute,
            self.captures,
            torch.zeros(8, 1, device=DEVICE),
            limit=2,
            ranks=ranks,
        )

    def compute(self, step: DeviceStep) -> Tensor:
        return self.ranks.sum(step.tokens[:, None].float())

    def decode(self, count: int) -> float | None:
        found = self.graphs.hidden(small(count), ROW)
        return None if found is None else found.item()


class Pair:
    def __init__(self) -> None:
        self.formed = Formed(2)
        self.by_ranks = {ranks: Rank(ranks) for ranks in self.formed.ranks}
        self.both = list(self.by_ranks.values())

    def decode(self, count: int) -> list[float | None]:
        return self.each(lambda rank: rank.decode(count))

    def each(self, call: Callable[[Rank], float | None]) -> list[float | None]:
        return self.formed.each(lambda ranks: call(self.by_ranks[ranks]))

    def form_again(self) -> None:
        for ranks in self.formed.ranks:
            ranks.leave()
        self.formed.form()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.formed.close()


def test_both_capture_and_launch_the_same(pair: Pair) -> None:
    assert [pair.decode(count) for count in (3, 4, 1, 3)] == [[6.0, 6.0]] * 4
    for rank in pair.both:
        assert [made.runs for made in rank.captures.made] == [2, 0]


def test_a_capture_that_fails_on_one_rank_is_given_up_by_both_for_good(pair: Pair) -> None:
    assert pair.decode(1) == [6.0, 6.0]
    pair.both[1].captures.able = False
    assert pair.decode(3) == [6.0, 6.0]  # The step itself was computed.
    for rank in pair.both:
        assert all(made.dropped for made in rank.captures.made)
        assert len(rank.graphs) == 0
    assert pair.decode(3) == pair.decode(1) == [None, None]
    assert [rank.captures.tried for rank in pair.both] == [2, 2]


def test_graphs_go_before_their_group_and_are_captured_anew_in_the_next(pair: Pair) -> None:
    pair.decode(3)
    pair.form_again()
    assert pair.decode(3) == pair.decode(3) == [6.0, 6.0]
    for rank in pair.both:
        assert [(made.runs, made.dropped) for made in rank.captures.made] == [(0, True), (1, False)]
        assert rank.captures.renewed == 1


def test_what_could_not_be_captured_is_tried_again_in_the_next_group(pair: Pair) -> None:
    pair.both[0].captures.able = False
    pair.decode(1)
    pair.form_again()
    pair.both[0].captures.able = True
    assert pair.decode(1) == [6.0, 6.0]
    assert [len(rank.graphs) for rank in pair.both] == [1, 1]


def test_who_was_there_before_decides_as_who_is_new(pair: Pair) -> None:
    """Which bucket may have a graph depends on all decodes so far, up to the limit."""
    for count in (1, 1, 1, 2):
        pair.decode(count)
    pair.form_again()
    fresh = Rank(pair.formed.ranks[1])
    pair.both[1] = pair.by_ranks[pair.formed.ranks[1]] = fresh
    for count in (2, 4, 8, 1, 2):
        found = pair.decode(count)
        assert found[0] == found[1]
    assert pair.both[0].graphs._graphs.keys() == fresh.graphs._graphs.keys()
    assert pair.both[0].graphs._decodes == fresh.graphs._decodes


def test_nothing_is_launched_in_a_group_that_is_over(pair: Pair) -> None:
    pair.decode(1)
    one = pair.both[0]
    one.ranks.abandon()
    with pytest.raises(GroupLost):
        one.decode(1)
    assert one.captures.made[0].runs == 0


def test_a_group_that_ends_during_a_capture_is_no_failed_capture(pair: Pair) -> None:
    def ends(work: Work) -> Recorded:
        raise GroupLost("the session is over")

    for rank in pair.both:
        rank.captures.capture = ends
    lost = pair.formed.each(lambda ranks: _lost(pair.by_ranks[ranks]))
    assert lost == [True, True]


def _lost(rank: Rank) -> bool:
    with pytest.raises(GroupLost):
        rank.decode(1)
    return rank.graphs._able


def test_ranks_keep_nobody_alive() -> None:
    ranks = Ranks()
    Rank(ranks)
    gc.collect()
    assert not ranks._recorded
