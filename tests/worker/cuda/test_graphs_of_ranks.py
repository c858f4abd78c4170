"""Graphs where several ranks compute: all launch one, or none does."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock_worker.forward.buckets import Buckets
from penstock_worker.forward.captures import Work
from penstock_worker.forward.device_step import DeviceStep
from penstock_worker.forward.graphs import DecodeGraphs
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
    """able: how many captures succeed."""

    ranks: Ranks
    able: int = 9
    made: list[Recorded] = field(default_factory=list)
    tried: int = 0
    renewed: int = 0

    def capture(self, work: Work) -> Recorded:
        self.tried += 1
        if len(self.made) >= self.able:
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
            Buckets(4, 500, 4),
            attention,
            Uploads(DEVICE),
            self.compute,
            self.captures,
            torch.zeros(4, 1, device=DEVICE),
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

    def capture(self) -> None:
        self.each(lambda rank: rank.graphs.capture())

    def decode(self, count: int) -> list[float | None]:
        return self.each(lambda rank: rank.decode(count))

    def each(self, call: Callable[[Rank], Any]) -> list[Any]:
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


def test_both_capture_all_and_launch_the_same(pair: Pair) -> None:
    pair.capture()
    assert [pair.decode(count) for count in (3, 4, 1, 3)] == [[6.0, 6.0]] * 4
    for rank in pair.both:
        assert [made.runs for made in rank.captures.made] == [3, 0, 1]  # Of 4, 2 and 1.


def test_a_capture_that_fails_on_one_rank_is_given_up_by_both(pair: Pair) -> None:
    pair.both[1].captures.able = 1
    pair.capture()
    for rank in pair.both:
        assert all(made.dropped for made in rank.captures.made)
        assert len(rank.graphs) == 0
    assert pair.decode(3) == pair.decode(1) == [None, None]
    assert [rank.captures.tried for rank in pair.both] == [2, 2]


def test_graphs_go_before_their_group_and_are_captured_anew_in_the_next(pair: Pair) -> None:
    pair.capture()
    pair.form_again()
    assert pair.decode(3) == [None, None]  # No step captures.
    pair.capture()
    assert pair.decode(3) == [6.0, 6.0]
    for rank in pair.both:
        found = [(made.runs, made.dropped) for made in rank.captures.made]
        assert found == [(0, True)] * 3 + [(1, False), (0, False), (0, False)]
        assert rank.captures.renewed == 1


def test_what_could_not_be_captured_is_tried_again_in_the_next_group(pair: Pair) -> None:
    pair.both[0].captures.able = 0
    pair.capture()
    pair.form_again()
    pair.both[0].captures.able = 9
    pair.capture()
    assert pair.decode(1) == [6.0, 6.0]
    assert [len(rank.graphs) for rank in pair.both] == [3, 3]


def test_nothing_is_launched_in_a_group_that_is_over(pair: Pair) -> None:
    pair.capture()
    one = pair.both[0]
    one.ranks.abandon()
    with pytest.raises(GroupLost):
        one.decode(1)
    assert [made.runs for made in one.captures.made] == [0, 0, 0]


def test_a_group_that_ends_during_a_capture_is_no_failed_capture(pair: Pair) -> None:
    def ends(work: Work) -> Recorded:
        raise GroupLost("the session is over")

    for rank in pair.both:
        rank.captures.capture = ends
    lost = pair.formed.each(lambda ranks: _lost(pair.by_ranks[ranks]))
    assert lost == [True, True]


def _lost(rank: Rank) -> bool:
    with pytest.raises(GroupLost):
        rank.graphs.capture()
    return True


def test_ranks_keep_nobody_alive() -> None:
    ranks = Ranks()
    Rank(ranks)
    gc.collect()
    assert not ranks._recorded
