"""Random histories with drafts: as many as the policy wants, or any number; of which any are right,
at any moment of everything else that happens."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.model.kv_layout import paged, state_of
from penstock_engine.speculation.draft_policy import DraftPolicy, Offer, StepSize
from tests.engine import walks
from tests.engine.rank_walker import RankWalker, make_rank_harness
from tests.engine.test_walk import Drawn
from tests.engine.test_walk_groups import Drawing, drawn_groups, drawn_with_states
from tests.engine.walked_harness import Choices, Seeded, make_harness
from tests.engine.walker import Walker
from tests.met import met as is_met


class AnyDrafts(DraftPolicy):
    """Whatever there is room for."""

    def __init__(self, choose: Choices) -> None:
        super().__init__()
        self._choose = choose

    def choose(self, offers: list[Offer], size: StepSize, left: int) -> list[int]:
        counts = []
        for offer in offers:
            counts.append(self._choose.whole(0, min(offer.most, left)))
            left -= counts[-1]
        return counts


class DraftWalker(Walker):
    """Workers propose a few tokens, most of the time. groups: models' KV groups."""

    def __init__(self, choose: Choices, groups: Drawing | None) -> None:
        super().__init__(make_harness(choose), choose)
        h = self.h
        if groups is not None:
            h.kv_groups = groups(choose, h.facts.config.cache.kv_block_size)
        if choose.whole(0, 2):
            h.core.state.scheduling.draft_policy = AnyDrafts(choose)
        h.proposes = lambda: max(0, choose.whole(-1, 6))
        h.drafts = self._drafts

    def _drafts(self, most: int) -> tuple[int, int]:
        drafted = most if self.choose.whole(0, 2) else self.choose.whole(0, most)
        return drafted, self.choose.whole(0, drafted)

    def _ends(self) -> dict[str, Any]:
        """Somebody claims to know some outputs, which are drafted from their first step on."""
        ends = super()._ends()
        if self.choose.whole(0, 4) == 0:
            most = min(self.choose.whole(1, 24), self.h.facts.max_prediction)
            ends |= {"prediction": [7] * most, "claimed": True}
        return ends

    def _pool_size(self) -> int:
        states = state_of(self.h.kv_groups)
        room = 0 if states is None else 2 * states.blocks
        return len(paged(self.h.kv_groups)) * super()._pool_size() + room

    def kill(self) -> None:
        running = self.h.core.state.scheduling.running.values()
        self.met["killed in a draft"] += any(s.progress.drafts for s in running)
        super().kill()

    def end(self) -> None:
        if self.h.worker is None:
            self.h.start_worker(32 * sum(max(1, group.blocks) for group in self.h.kv_groups))
        super().end()
        self.met["preempted"] += self.h.core.state.scheduling.num_preemptions
        counts = self.h.core.state.counts
        self.met["drafted"] += counts.drafted_tokens
        self.met["kept"] += counts.kept_tokens
        assert sum(counts.kept_at) == counts.kept_tokens


def walked(choose: Choices, operations: int, groups: Drawing | None = None) -> Counter[str]:
    walker = walks.walked(DraftWalker(choose, groups), operations)
    walker.end()
    return walker.met


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.integers(1, 60))
def test_short_histories(data: st.DataObject, length: int) -> None:
    is_met("drafted", walked(Drawn(data), length)["drafted"])


@pytest.mark.slow
@pytest.mark.parametrize("groups", [None, drawn_groups, drawn_with_states])
def test_long_histories_and_that_they_meet_what_they_are_for(groups: Drawing | None) -> None:
    met = sum((walked(Seeded(seed), 300, groups) for seed in range(24)), Counter[str]())
    assert met["drafted"] > 500
    assert met["kept"] > 200
    assert met["preempted"] > 10
    assert met["deferred"] > 20
    assert met["killed in a draft"] > 1


def test_ranks_that_draft_the_same_follow_one_another() -> None:
    met = Counter[str]()
    for seed in range(8):
        choose = Seeded(seed)
        walker = RankWalker(make_rank_harness(choose, (2, 1)), choose)
        h = walker.h
        h.core.state.scheduling.draft_policy = AnyDrafts(choose)
        h.proposes, h.drafts = (lambda: 6), (lambda most: (most, most * 2 // 3))
        walker.connect()
        for _ in range(200):
            walker.walk()
        walker.end()
        met += walker.met
        met["kept"] += h.core.state.counts.kept_tokens
    assert met["kept"] > 20
    assert met["ahead"] > 20
