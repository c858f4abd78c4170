"""Random histories in which requests are turns of sessions, with times that pass."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.engine.harness import Harness
from tests.engine.test_walk import Drawn
from tests.engine.walked_harness import Choices, Seeded, drawn_options
from tests.engine.walker import Walker
from tests.engine.walks import SHORT, check_replay, check_restored, walked
from tests.met import met as is_met


class SessionWalker(Walker):
    def __init__(self, choose: Choices) -> None:
        share = choose.whole(1, 10) / 10
        options = drawn_options(choose) | {"prefix_caching": True, "session_share": share}
        super().__init__(Harness(**options), choose)
        self.has_sessions = True
        self._wheel += ["submit"] * 30 + ["wait"] * 20

    def _host_size(self) -> int:
        return self.choose.whole(0, 1) * 40

    def _pool_size(self) -> int:
        """Room for the longest sequence, and hardly more: contents are displaced soon."""
        size = self.h.facts.config.cache.kv_block_size
        return -(-self.h.facts.max_model_len // size) + self.choose.whole(0, 2)

    def wait(self) -> None:
        self.h.now += self.choose.whole(1, 60) / 10
        self.h.settle()

    def step(self) -> None:
        super().step()
        self._look()

    def _look(self) -> None:
        cache = self.h.core.state.scheduling.cache
        if cache is not None:
            kept = cache.retention.num_blocks
            self.met["kept"] += kept
            self.met["expected"] += self.h.core.state.kv_sessions._expected.num_keys
            self.met["at the limit"] += 0 < kept == cache.retention.limit

    def end(self) -> None:
        super().end()
        self.h.now += 4000.0
        self.h.settle()
        cache = self.h.core.state.scheduling.cache
        assert cache is not None
        assert cache.retention.num_blocks == 0
        sessions = self.h.core.state.kv_sessions
        assert sessions.num_live == 0
        assert not sessions._heap


@SHORT
@given(st.data(), st.integers(1, 60))
def test_short_histories(data: st.DataObject, length: int) -> None:
    walker = walked(SessionWalker(Drawn(data)), length)
    walker.end()
    is_met("in a session", walker.met["in a session"])


def test_long_histories_and_that_they_meet_what_they_are_for() -> None:
    met = Counter[str]()
    for seed in range(8):
        walker = walked(SessionWalker(Seeded(seed)), 300)
        walker.end()
        met += walker.met
        met["prefetched"] += walker.h.core.state.counts.prefetched["host"]
    assert met["in a session"] > 40, met
    assert met["kept"] > 200, met
    assert met["at the limit"] > 5, met
    assert met["expected"] > 20, met
    assert met["prefetched"], met


def test_a_replay_decides_alike(tmp_path: Path) -> None:
    _, steps = check_replay(SessionWalker(Seeded(1)), tmp_path, 200)
    assert steps > 100


def test_a_restored_core_goes_on_like_the_original() -> None:
    assert check_restored(walked(SessionWalker(Seeded(0)), 150), 80) > 20
