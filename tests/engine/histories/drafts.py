"""Random histories with drafts: as many as the policy wants, or any number; of which any are right,
at any moment of everything else that happens."""

from __future__ import annotations

from typing import Any

from penstock.model.kv_layout import paged, state_of
from penstock_engine.speculation.draft_policy import DraftPolicy, Offer, StepSize
from tests.engine.histories.groups import Drawing, one_group
from tests.engine.rank_walker import RankWalker, make_rank_harness
from tests.engine.walked_harness import Choices, make_harness
from tests.engine.walker import Walker


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

    def __init__(self, choose: Choices, groups: Drawing = one_group) -> None:
        super().__init__(make_harness(choose), choose)
        h = self.h
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
        counts = self.h.core.state.counts
        assert sum(counts.kept_at) == counts.kept_tokens


class RankDraftWalker(RankWalker):
    """All of two ranks draft the same, of which two thirds are right."""

    def __init__(self, choose: Choices) -> None:
        super().__init__(make_rank_harness(choose, (2, 1)), choose)
        self.h.core.state.scheduling.draft_policy = AnyDrafts(choose)
        self.h.proposes, self.h.drafts = (lambda: 6), (lambda most: (most, most * 2 // 3))
