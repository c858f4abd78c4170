"""Random histories of which each answer is audited: whatever happens, no right answer is said to be
wrong, and audits are in nobody's way."""

from __future__ import annotations

from collections import Counter

from penstock.model.kv_layout import ONE_GROUP, paged, state_of
from penstock_engine.waiting.live_audit import LiveAudit
from tests.engine.fake_adapters import adapter
from tests.engine.harness import Harness
from tests.engine.histories.groups import drawn_groups, drawn_with_states
from tests.engine.walked_harness import Choices, drawn_options
from tests.engine.walker import Walker


class AuditWalker(Walker):
    """Comes to rest now and then, for as many steps as some replays take."""

    def __init__(self, choose: Choices) -> None:
        loras = choose.whole(0, 2)
        options = {**drawn_options(choose), "max_loras": loras, "audit_share": 1.0}
        super().__init__(Harness(**options), choose)
        self.h.proposes = lambda: choose.whole(0, 4)
        draw = (lambda _, size: ONE_GROUP, drawn_groups, drawn_with_states)[choose.whole(0, 2)]
        self.h.kv_groups = draw(choose, self.h.facts.config.cache.kv_block_size)
        self.walks["rest"] = (1, self.rest)
        names = [name for name in self.walks if self.walks[name][0] and name != "rest"]
        self.only(names, rest=4, **({"adapted": 10} if loras else {}))
        self.walks["adapted"] = (0, self.adapted)

    @property
    def audits(self) -> LiveAudit:
        found = self.h.core.state.audits
        assert found is not None
        return found

    def _pool_size(self) -> int:
        states = state_of(self.h.kv_groups)
        room = 0 if states is None else 2 * states.blocks
        return len(paged(self.h.kv_groups)) * super()._pool_size() + room

    def walk(self) -> None:
        super().walk()
        replay = self.audits.sequence
        if replay is None:
            return
        self.met["replayed"] += 1
        state = self.h.core.state.scheduling
        assert not self.h.core.has_open_requests
        assert list(state.running.values()) == [replay]
        assert len(state.in_flight) <= 1
        assert not any(step.drafts or step.extra_steps for step in state.in_flight)

    def rest(self) -> None:
        """Until nobody waits, but audits may."""
        for number in list(self.h.worker.asked) if self.h.worker is not None else ():
            self.h.compiles(number)
        for _ in range(self.choose.whole(0, 200)):
            if self.h.run_step() is None and not self.h.load_adapter():
                return

    def adapted(self) -> None:
        front = self._front()
        if front is not None:
            prompt = self._prompt(self.choose.whole(1, 8))
            self.h.submit(front, prompt, adapter=adapter(self.choose.whole(1, 3)))

    def kill(self) -> None:
        replays = self.audits.sequence is not None
        self.met["killed in a replay"] += replays and self.h.worker is not None
        super().kill()

    def end(self) -> None:
        super().end()
        audits = self.audits
        assert audits.different == 0
        assert audits.num_held == 0
        self.met["equal"] += audits.equal
        self.met += Counter({f"skipped: {why}": count for why, count in audits.skipped.items()})
