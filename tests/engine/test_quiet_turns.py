"""A turn that only plans does what a whole one would have done: random histories are told to a core
that asks every part in every turn, too, and both send the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock_engine.core import EngineCore
from penstock_engine.record.restoring import restore
from penstock_engine.record.snapshot import snapshot
from penstock_engine.sessions.effects import Effects
from tests.engine.histories.adapters import AdapterWalker
from tests.engine.histories.audits import AuditWalker
from tests.engine.histories.claims import ClaimWalker
from tests.engine.histories.disk import DiskWalker
from tests.engine.histories.media import MediaWalker
from tests.engine.histories.sessions import SessionWalker
from tests.engine.histories.shared import ShareWalker
from tests.engine.rank_walker import RankWalker, make_rank_harness
from tests.engine.record.twins import Twins
from tests.engine.walked_harness import Choices, Seeded, make_harness
from tests.engine.walker import Walker
from tests.thinning import part

OPERATIONS = 240
SEEDS = part(6, 1 / 2)

WALKERS: dict[str, Callable[[Choices], Walker]] = {
    "text": lambda choose: Walker(make_harness(choose), choose),
    "adapters": AdapterWalker,
    "audits": AuditWalker,
    "claims": ClaimWalker,
    "disk": DiskWalker,
    "media": MediaWalker,
    "ranks": lambda choose: RankWalker(make_rank_harness(choose, (2, 1)), choose),
    "sessions": SessionWalker,
    "shared": ShareWalker,
}


class AsksEachTurn(EngineCore):
    """Every turn is a whole one."""

    def step(self, now: float) -> Effects:
        self._disturbed = True
        return super().step(now)


class Compared(Twins):
    """quiet: turns in which the original only planned. busy: those of them that began a step."""

    def __init__(self, core: EngineCore) -> None:
        copy = restore(snapshot(core))
        copy.__class__ = AsksEachTurn
        super().__init__(core, copy)
        self.quiet = self.busy = 0

    def step(self, now: float) -> Effects:
        quiet = not self.original._disturbed and now < self.original._quiet_until
        effects = super().step(now)
        self.quiet += quiet
        self.busy += quiet and bool(effects.to_workers)
        return effects

    def check_deadlines(self) -> None:
        """The original may look a little earlier: its deadline is that of its last whole turn."""
        assert self.original.next_deadline() <= self.copy.next_deadline()


@pytest.mark.parametrize("name", WALKERS)
def test_a_turn_of_tokens_asks_nobody_in_vain(name: str) -> None:
    quiet = busy = 0
    for seed in range(SEEDS):
        walker = WALKERS[name](Seeded(seed))
        compared = Compared(walker.h.core)
        walker.h.core = compared  # type: ignore[assignment]
        walker.connect()
        for _ in range(OPERATIONS):
            walker.walk()
        walker.end()
        quiet, busy = quiet + compared.quiet, busy + compared.busy
    assert quiet > 4, "hardly a turn was quiet"
    assert busy > 2, "nothing was planned in quiet turns"
