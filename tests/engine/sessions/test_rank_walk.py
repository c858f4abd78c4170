"""Random histories over several ranks; what each sequence gives is what it gives alone."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock_engine.record.restoring import restore
from penstock_engine.record.snapshot import snapshot
from tests.engine.rank_walker import SIZES, RankWalker, make_rank_harness
from tests.engine.record.twins import Twins
from tests.engine.walked_harness import Drawn, Seeded
from tests.met import met as is_met
from tests.thinning import part


@settings(max_examples=part(40, 1 / 3), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.integers(1, 60))
def test_short_histories(data: st.DataObject, length: int) -> None:
    choose = Drawn(data)
    walker = RankWalker(make_rank_harness(choose), choose)
    walker.connect()
    for _ in range(length):
        walker.walk()
    walker.end()
    is_met("three steps", walker.h.core.state.scheduling.num_steps >= 3)


def rank_walk(seed: int, length: int) -> RankWalker:
    choose = Seeded(seed)
    walker = RankWalker(make_rank_harness(choose, SIZES[seed % len(SIZES)]), choose)
    walker.connect()
    for _ in range(length):
        walker.walk()
    return walker


@pytest.mark.slow
def test_long_histories_end_well_and_meet_what_they_are_for() -> None:
    met = Counter[str]()
    for seed in range(4 * len(SIZES)):
        walker = rank_walk(seed, 600)
        walker.end()
        met += walker.met
        met["preempted"] += walker.h.core.state.scheduling.num_preemptions
        met["followed"] += walker.h.num_followed
        met["reused"] += walker.h.num_reused
        met["steps"] += walker.h.core.state.scheduling.num_steps
    for what, least in {
        "ahead": 100,
        "deferred": 20,
        "disagreed": 5,
        "ended between chunks": 3,
        "followed": 200,
        "failing": 20,
        "halved": 2,
        "halved late": 1,
        "killed": 20,
        "lost between chunks": 3,
        "preempted": 20,
        "replaced": 5,
        "reused": 100,
        "steps": 1500,
    }.items():
        assert met[what] >= least, (what, met)


def test_a_restored_core_goes_on_like_the_original() -> None:
    for seed in range(len(SIZES)):
        walker = rank_walk(seed, 100 + 60 * seed)
        core = walker.h.core
        twins = Twins(core, restore(snapshot(core)))
        walker.h.core = twins  # type: ignore[assignment]
        for _ in range(80):
            walker.walk()
        walker.end()
        assert snapshot(twins.original) == snapshot(restore(snapshot(twins.original)))
