"""The policy `fair`: weighted shares per tenant, in the queue, in the step and in the pool."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from penstock.config.settings import SchedulerSettings
from penstock_engine.policies.fair_share.accounts import (
    BLOCK_COST,
    GENERATED_COST,
    PROMPT_COST,
    SCALE,
    Accounts,
)
from penstock_engine.policies.fair_share.dealing import Hand, deal, hands_of
from penstock_engine.policies.fair_share.queue import FairQueue
from penstock_engine.policies.fair_share.room import FairRoom
from penstock_engine.policies.first_come import OneLine
from penstock_engine.policies.order import PriorityWithAgeing
from penstock_engine.policies.pace import StepPace, pace_of
from penstock_engine.policies.policy import Shortage, Standing, Turn
from penstock_engine.policies.tenants import Tenants
from penstock_engine.request.request import Sequence
from penstock_engine.request.step_builder import StepBuilder


class FairShare(OneLine):
    """Serves the tenant first that has been given least; inside a tenant, the order is that of
    `priority`.

    step_budget: tokens of a step.  A tenant may save up a claim to as many, so that one which asks
    for little finds a whole step free when it does.

    No sequence starves: the least-served tenant is served next; a sequence that finds no room is
    passed by a bounded number of others (FairQueue); and one that has lost its blocks more than
    once is spared for a while (FairRoom).
    """

    name = "fair"
    ages = True
    makes_way = True
    keeps_tenants_apart = True

    def __init__(self, tenants: Tenants, step_budget: int, pace: StepPace | None = None) -> None:
        super().__init__(PriorityWithAgeing(), pace or StepPace())
        self.accounts = Accounts(tenants, self.order, PROMPT_COST * step_budget)
        self.queue = FairQueue(self.accounts)
        self._room = FairRoom(self.accounts, self.order)

    @classmethod
    def make(cls, settings: SchedulerSettings, tenants: Tenants) -> FairShare:
        pace = pace_of(settings)
        return cls(tenants, settings.max_num_batched_tokens, pace)

    # ---- accounts

    def joined(self, sequence: Sequence) -> None:
        self.accounts.joined(sequence.request.tenant, sequence.request.grant)

    def left(self, sequence: Sequence) -> None:
        self.accounts.left(sequence.request.tenant)

    def charge(self, sequence: Sequence, prompt: int, generated: int, block_steps: int) -> None:
        cost = PROMPT_COST * prompt + GENERATED_COST * generated + BLOCK_COST * block_steps
        self.accounts.charge(sequence.request.tenant, cost)

    def debts(self) -> dict[str, float] | None:
        unit = SCALE * GENERATED_COST
        return {name: ahead / unit for name, ahead in self.accounts.ahead().items()}

    def standings(self, tenants: Iterable[str]) -> dict[str, Standing]:
        return {
            name: Standing(self.accounts[name].weight, round(debt / GENERATED_COST, 1))
            for name, debt in self.accounts.debts(tenants).items()
        }

    # ---- a step

    def budget(self, budget: int, in_flight: int) -> int:
        """Limits a step's tokens so that all steps in flight together have one step's worth:
        otherwise a light tenant's request would find two whole steps before its own."""
        return budget if not in_flight else (budget - in_flight if 2 * in_flight <= budget else 0)

    def turns(
        self,
        decodes: list[Sequence],
        chunks: list[Sequence],
        builder: StepBuilder,
        *,
        can_start: bool,
    ) -> Iterator[Turn]:
        """Decodes within what their tenants are dealt, then those that start, then chunks; then
        whatever found no room leaves its part to the others. The step is short enough for the
        tenant that has fewest decodes."""
        hands = hands_of(self.accounts, decodes, chunks, builder.left if can_start else 0)
        if len(hands) < 2:
            yield from super().turns(decodes, chunks, builder, can_start=can_start)
            return
        fewest = min((len(hand.decodes) for hand in hands if hand.decodes), default=0)
        builder.keep_to(self.pace.tokens(fewest))
        deal(hands, builder.left)
        kept_out: list[Sequence] = []
        for hand in hands:
            if hand.for_decodes < len(hand.decodes):
                hand.decodes.sort(key=lambda sequence: sequence.progress.last_served)
            for sequence in hand.decodes[: hand.for_decodes]:
                yield Turn(sequence, 1)
            kept_out += hand.decodes[hand.for_decodes :]
        spare = 0
        for hand in hands:
            if hand.for_fresh:
                before = builder.left
                yield Turn(None, hand.for_fresh, tenant=hand.account.name)
                spare += hand.for_fresh - (before - builder.left)
        yield from self._chunks(hands, builder, spare)
        for sequence in kept_out:
            yield Turn(sequence, 1)
        yield Turn(None, builder.left)

    def _chunks(self, hands: list[Hand], builder: StepBuilder, spare: int) -> Iterator[Turn]:
        for hand in hands:
            spare += hand.for_chunks
            for sequence in sorted(hand.chunks, key=self.order.key):
                if spare <= 0:
                    break
                before = builder.left
                yield Turn(sequence, spare)
                spare -= before - builder.left

    # ---- room

    def victim(self, running: Collection[Sequence], needy: Sequence) -> Sequence | None:
        return self._room.victim(running, needy)

    def make_way(
        self, head: Sequence, running: Iterable[Sequence], shortage: Shortage
    ) -> list[Sequence] | None:
        return self._room.make_way(head, running, shortage)
