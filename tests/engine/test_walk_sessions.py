"""Random histories in which requests are turns of sessions, with times that pass."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.config.settings import RecordSettings
from penstock_engine.record.framing import log_files
from penstock_engine.record.recorder import recording
from penstock_engine.record.replay import replay
from penstock_engine.record.restore import restore
from penstock_engine.record.snapshot import snapshot
from tests.engine.harness import Harness
from tests.engine.record.twins import Twins
from tests.engine.test_walk import Drawn, Seeded
from tests.engine.walker import Choices, Walker, drawn_options
from tests.thinning import part


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


def walked(choose: Choices, operations: int) -> SessionWalker:
    walker = SessionWalker(choose)
    walker.connect()
    for _ in range(operations):
        walker.walk()
    return walker


@settings(max_examples=part(20, 1 / 2), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.integers(1, 60))
def test_short_histories(data: st.DataObject, length: int) -> None:
    walked(Drawn(data), length).end()


def test_long_histories_and_that_they_meet_what_they_are_for() -> None:
    met = Counter[str]()
    for seed in range(8):
        walker = walked(Seeded(seed), 300)
        walker.end()
        met += walker.met
        met["prefetched"] += walker.h.core.state.counts.prefetched["host"]
    assert met["in a session"] > 40, met
    assert met["kept"] > 200, met
    assert met["at the limit"] > 5, met
    assert met["expected"] > 20, met
    assert met["prefetched"], met


def test_a_replay_decides_alike(tmp_path: Path) -> None:
    walker = SessionWalker(Seeded(1))
    with recording(walker.h.core, RecordSettings(record_dir=str(tmp_path))) as core:
        walker.h.core = core
        walker.connect()
        for _ in range(200):
            walker.walk()
    (path,) = log_files([str(tmp_path)])
    done = replay(path)
    assert (done.difference, done.torn) == (None, None)
    assert done.steps > 100


def test_a_restored_core_goes_on_like_the_original() -> None:
    walker = walked(Seeded(0), 150)
    core = walker.h.core
    twins = Twins(core, restore(snapshot(core)))
    walker.h.core = twins  # type: ignore[assignment]
    for _ in range(80):
        walker.walk()
    walker.end()
    assert twins.steps > 20
