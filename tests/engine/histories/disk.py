"""Random histories with a tier on disk, which outlives workers, answers late, and loses blocks."""

from __future__ import annotations

from penstock.model.kv_layout import paged, state_of
from tests.engine.fake_disk import FakeDisk
from tests.engine.harness import Harness
from tests.engine.histories.groups import Drawing, one_group
from tests.engine.walked_harness import Choices, drawn_options
from tests.engine.walker import Walker


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
        assert self.h.disk is not None
        assert self.h.disk.num_read >= self.h.core.state.counts.disk_blocks_read
