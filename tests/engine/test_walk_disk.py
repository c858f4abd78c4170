"""Random histories with a tier on disk, which outlives workers, answers late, and loses blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.kv_layout import ONE_GROUP, KVGroup, paged, state_of
from penstock_engine.waiting import disk_kv
from tests.engine.fake_disk import FakeDisk
from tests.engine.harness import Harness
from tests.engine.test_walk import Drawn
from tests.engine.test_walk_groups import drawn_groups, drawn_with_states
from tests.engine.walked_harness import Choices, Seeded, drawn_options
from tests.engine.walker import Walker
from tests.engine.walks import SHORT, check_replay, check_restored, walked
from tests.met import met as is_met


@pytest.fixture(autouse=True, scope="module")
def single_blocks_are_worth_it() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk_kv, "LEAST_FETCHED_BLOCKS", 1)
        patch.setattr(disk_kv, "MAX_FETCHES", 3)
        yield


Drawing = Callable[[Choices, int], tuple[KVGroup, ...]]


def one_group(choose: Choices, size: int) -> tuple[KVGroup, ...]:
    return ONE_GROUP


class DiskWalker(Walker):
    def __init__(self, choose: Choices, drawn: Drawing = one_group) -> None:
        options = drawn_options(choose) | {"prefix_caching": True}
        super().__init__(Harness(**options), choose)
        self.h.kv_groups = drawn(choose, self.h.facts.config.cache.kv_block_size)
        self.h.disk = FakeDisk(block_seconds=lambda: choose.whole(0, 3) // 3 * 100.0)
        self.h.disk_at_once = False
        self.has_sessions = True
        self._wheel += ["disk"] * 60 + ["in mid-read"] * 8 + ["worker"] * 12
        self.walks |= {"disk": (60, self.disk), "in mid-read": (8, self.in_mid_read)}

    def _pool_size(self) -> int:
        states = state_of(self.h.kv_groups)
        room = 0 if states is None else 2 * states.blocks
        return len(paged(self.h.kv_groups)) * super()._pool_size() + room

    def disk(self) -> None:
        """It answers something that it was asked, not always the first; sometimes a block is
        lost."""
        worker, whole = self.h.worker, self.choose.whole
        if worker is None or not worker.reader.due:
            return
        at = whole(0, len(worker.reader.due) - 1)
        keys = worker.reader.due[at].keys
        lost = keys[whole(0, len(keys) - 1)] if whole(0, 4) == 0 else None
        self.met["lost"] += lost is not None
        self.met["waited"] += bool(self.h.core.state.remote_kv.num_waiting)
        self.h.answer_disk(at, lost)

    def in_mid_read(self) -> None:
        """While blocks are being read, the worker dies, or a request ends that waits for some."""
        waiting = self.h.core.state.remote_kv.parked()
        if self.h.worker is None or not self.h.worker.reader.held:
            return
        if not waiting or self.choose.whole(0, 1):
            self.met["killed while reading"] += 1
            self.kill()
            return
        request = waiting[0].request
        front = next(each for each in self.h.fronts if each.session == request.session)
        self.met["left while reading"] += 1
        self.h.abort(front, front.requests[request.number])

    def end(self) -> None:
        self.h.disk_at_once = True
        super().end()
        cache = self.h.core.state.scheduling.cache
        assert cache is not None
        assert not cache.num_fetching


@SHORT
@given(st.data(), st.integers(1, 60))
def test_short_histories(data: st.DataObject, length: int) -> None:
    walker = walked(DiskWalker(Drawn(data)), length)
    walker.end()
    is_met("waited", walker.met["waited"])


@pytest.mark.slow
def test_long_histories_and_that_they_meet_what_they_are_for() -> None:
    met = Counter[str]()
    for seed in range(12):
        walker = walked(DiskWalker(Seeded(seed)), 500)
        walker.end()
        met += walker.met
        counts = walker.h.core.state.counts
        met["read"] += counts.disk_blocks_read
        met["missed"] += counts.disk_blocks_missed
        met["prefetched"] += counts.prefetched["disk"]
        assert walker.h.disk is not None
        assert walker.h.disk.num_read >= counts.disk_blocks_read
    for what in (
        "lost",
        "waited",
        "missed",
        "killed while reading",
        "left while reading",
        "prefetched",
    ):
        assert met[what], (what, met)
    assert met["read"] > 60, met


@SHORT
@given(st.data(), st.integers(1, 60), st.sampled_from((drawn_groups, drawn_with_states)))
def test_short_histories_with_groups(data: st.DataObject, length: int, drawn: Drawing) -> None:
    walker = walked(DiskWalker(Drawn(data), drawn), length)
    walker.end()
    is_met("three steps", walker.h.core.state.scheduling.num_steps >= 3)


@pytest.mark.slow
@pytest.mark.parametrize("drawn", [drawn_groups, drawn_with_states])
def test_long_histories_with_groups_and_that_they_meet_what_they_are_for(drawn: Drawing) -> None:
    met = Counter[str]()
    for seed in range(14):
        walker = walked(DiskWalker(Seeded(seed), drawn), 600)
        walker.end()
        met += walker.met
        counts = walker.h.core.state.counts
        met["read"] += counts.disk_blocks_read
        met["missed"] += counts.disk_blocks_missed
        met["prefetched"] += counts.prefetched["disk"]
    for what in ("lost", "waited", "missed", "killed while reading", "prefetched"):
        assert met[what], (what, met)
    assert met["read"] > 60, met


@pytest.mark.parametrize("seed", [0, 2, 3, 4])
def test_a_replay_decides_alike(tmp_path: Path, seed: int) -> None:
    core, steps = check_replay(DiskWalker(Seeded(seed)), tmp_path, 400)
    assert core.state.counts.disk_blocks_read
    assert steps > 200


@pytest.mark.parametrize("seed", range(4))
def test_a_restored_core_goes_on_like_the_original(seed: int) -> None:
    assert check_restored(walked(DiskWalker(Seeded(seed)), 150 + 40 * seed), 200) > 50
