"""Random histories of several ranks, each of which keeps its own part of every block, and loses
others than the rest do."""

from __future__ import annotations

from typing import Any

from penstock.model.kv_layout import ONE_GROUP, KVGroup, paged, state_of
from tests.engine.fake_disk import FakeDisk
from tests.engine.rank_walker import RankWalker
from tests.engine.rank_workers import RankHarness
from tests.engine.walked_harness import Choices, drawn_options


class RankDiskWalker(RankWalker):
    """options: of its Harness, else drawn.  groups: of its model."""

    def __init__(
        self,
        choose: Choices,
        ranks: int,
        options: dict[str, Any] | None = None,
        groups: tuple[KVGroup, ...] = ONE_GROUP,
    ) -> None:
        options = (options or drawn_options(choose)) | {"prefix_caching": True}
        super().__init__(RankHarness(ranks, 1, **options), choose)
        self.h.kv_groups = groups
        self.h.disks = {rank: FakeDisk() for rank in range(ranks)}
        self.h.disk_at_once = False
        self._wheel += ["disk"] * 60 * ranks + ["worker"] * 30
        self.walks["disk"] = (60, self.disk)

    def _pool_size(self) -> int:
        states = state_of(self.h.kv_groups)
        room = 0 if states is None else 2 * states.blocks
        return len(paged(self.h.kv_groups)) * super()._pool_size() + room

    def disk(self) -> None:
        """One rank's answers something, not always the first; sometimes it has lost a block."""
        due, whole = self.h.disks_due(), self.choose.whole
        if not due or self.h.worker is None:
            return
        rank = due[whole(0, len(due) - 1)]
        asked = self.h.ranks[rank].worker.reader.due  # type: ignore[union-attr]
        at = whole(0, len(asked) - 1)
        keys = asked[at].keys
        lost = keys[whole(0, len(keys) - 1)] if whole(0, 4) == 0 else None
        self.met["lost"] += lost is not None
        self.met["answered before others"] += len(due) > 1
        self.h.answer_disk(at, lost, rank)

    def end(self) -> None:
        self.h.disk_at_once = True
        super().end()
        cache = self.h.core.state.scheduling.cache
        assert cache is not None
        assert not cache.num_fetching
