"""Random histories in which requests are turns of sessions, with times that pass."""

from __future__ import annotations

from tests.engine.harness import Harness
from tests.engine.walked_harness import Choices, drawn_options
from tests.engine.walker import Walker


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
