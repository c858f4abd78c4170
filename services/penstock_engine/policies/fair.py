"""The policy `fair`: weighted shares per tenant, in the queue, in the step and in the pool."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from penstock.config.settings import SchedulerSettings
from penstock_engine.policies.accounts import (
    BLOCK_COST,
    GENERATED_COST,
    PROMPT_COST,
    SCALE,
    Account,
    Accounts,
)
from penstock_engine.policies.dealing import Hand, deal
from penstock_engine.policies.fair_queue import FairQueue
from penstock_engine.policies.first_come import OneLine
from penstock_engine.policies.order import PriorityWithAgeing
from penstock_engine.policies.pace import StepPace
from penstock_engine.policies.policy import Shortage, Standing, Turn
from penstock_engine.policies.tenants import Tenants
from penstock_engine.request.request import Sequence
from penstock_engine.request.step_builder import StepBuilder

MOST_STARTING = 32
"""Tenants that a step's tokens for newcomers are dealt out among."""


class FairShare(OneLine):
    """Who has been given least is served first; inside a tenant, as by `priority`.

    step_budget: tokens of a step; a tenant may save up a claim to as many, so that one which asks
    for little finds a whole step for it when it does.

    Nobody starves: the least-served tenant is served next; of those that find no room, one is
    passed by a bounded number of others (FairQueue); and a sequence that has lost its blocks
    MOST_LOSSES times is spared until it has gained LEAST_GAIN tokens since it started again.  From
    the spared only their elders take blocks, and only for want of others, so the eldest finishes.
    """

    name = "fair"
    ages = True
    makes_way = True
    keeps_tenants_apart = True
    MOST_LOSSES = 2
    LEAST_GAIN = 16

    def __init__(self, tenants: Tenants, step_budget: int, pace: StepPace | None = None) -> None:
        super().__init__(PriorityWithAgeing(), pace or StepPace())
        self.accounts = Accounts(tenants, self.order, PROMPT_COST * step_budget)
        self.queue = FairQueue(self.accounts)

    @classmethod
    def make(cls, settings: SchedulerSettings, tenants: Tenants) -> FairShare:
        pace = StepPace(settings.max_step_slowdown)
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
        debts = self.accounts.debts(tenants)
        return {name: Standing(self.accounts[name].weight, debt) for name, debt in debts.items()}

    # ---- a step

    def budget(self, budget: int, in_flight: int) -> int:
        """What is in flight together is at most one step's worth, or a light tenant's request
        would find two whole steps before its own."""
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
        hands = self._hands(decodes, chunks, builder.left if can_start else 0)
        if len(hands) < 2:
            yield from super().turns(decodes, chunks, builder, can_start=can_start)
            return
        fewest = min((len(hand.decodes) for hand in hands if hand.decodes), default=0)
        builder.keep_to(self.pace.tokens(fewest))
        deal(hands, builder.left)
        kept_out: list[Sequence] = []
        for hand in hands:
            if hand.for_decodes < len(hand.decodes):
                hand.decodes.sort(key=lambda sequence: sequence.last_work)
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

    def _hands(self, decodes: list[Sequence], chunks: list[Sequence], fresh: int) -> list[Hand]:
        """What each tenant wants, the least served first. fresh: tokens for newcomers at most."""
        hands: dict[str, Hand] = {}
        for sequence in decodes:
            self._hand(hands, sequence.request.tenant).decodes.append(sequence)
        for sequence in chunks:
            hand = self._hand(hands, sequence.request.tenant)
            hand.chunks.append(sequence)
            hand.chunk += sequence.num_expected - sequence.num_scheduled
        if fresh:
            for account in self.accounts.first_waiting(MOST_STARTING):
                self._hand(hands, account.name).fresh = min(fresh, account.tokens_waiting)
        return sorted(hands.values(), key=lambda hand: hand.account.place)

    def _hand(self, hands: dict[str, Hand], tenant: str) -> Hand:
        hand = hands.get(tenant)
        if hand is None:
            hand = hands[tenant] = Hand(self.accounts[tenant])
        return hand

    # ---- room

    def victim(self, running: Collection[Sequence], needy: Sequence) -> Sequence | None:
        """The latest of the tenant that holds most for its weight, if that is not `needy` or
        before it.  The spared are taken for want of others only, the latest first."""
        free = [s for s in running if s is needy or not self._spared(s)]
        held = _blocks_by_tenant(running)
        accounts = [self.accounts[s.request.tenant] for s in free]
        if accounts:
            most = max(accounts, key=lambda a: (held[a.name] * SCALE // a.weight, a.place))
            last = max((s for s in free if s.request.tenant == most.name), key=self.order.key)
            others = most.name != needy.request.tenant
            if others or self.order.key(last) > self.order.key(needy):
                return last
            if not any(map(self._spared, running)):
                return None  # Whoever needs blocks can take the needy's own: this ends.
        return self._latest.victim(running, needy)

    def _spared(self, sequence: Sequence) -> bool:
        gained = sequence.num_tokens - sequence.tokens_at_start
        return sequence.num_preemptions >= self.MOST_LOSSES and gained < self.LEAST_GAIN

    def make_way(
        self, head: Sequence, running: Iterable[Sequence], shortage: Shortage
    ) -> list[Sequence] | None:
        """From tenants that have been given more and hold more, the latest first, and only while
        they go on holding no less than the head's tenant with it: so this is never undone."""
        mine = self.accounts[head.request.tenant]
        if not self.accounts.owes(mine):
            return None
        held = _blocks_by_tenant(running) if shortage.blocks > 0 else _slots_by_tenant(running)
        by_slots = shortage.blocks <= 0
        asked = held.get(mine.name, 0) + (1 if by_slots else shortage.needed)
        taken: list[Sequence] = []
        blocks, slots = shortage.blocks, shortage.slots
        for sequence in sorted(running, key=self.order.key, reverse=True):
            if blocks <= 0 and slots <= 0:
                break
            account = self.accounts[sequence.request.tenant]
            size = len(sequence.table.blocks) if sequence.table is not None else 0
            keeps = held[account.name] - (1 if by_slots else size)
            if not self._spared(sequence) and self._owes(account, keeps, mine, asked):
                taken.append(sequence)
                held[account.name] = keeps
                blocks -= size
                slots -= 1
        return taken if blocks <= 0 and slots <= 0 else None

    def _owes(self, account: Account, keeps: int, mine: Account, asked: int) -> bool:
        return account.time > mine.time and keeps * mine.weight >= asked * account.weight


def _blocks_by_tenant(running: Iterable[Sequence]) -> dict[str, int]:
    held: dict[str, int] = {}
    for sequence in running:
        size = len(sequence.table.blocks) if sequence.table is not None else 0
        held[sequence.request.tenant] = held.get(sequence.request.tenant, 0) + size
    return held


def _slots_by_tenant(running: Iterable[Sequence]) -> dict[str, int]:
    held: dict[str, int] = {}
    for sequence in running:
        held[sequence.request.tenant] = held.get(sequence.request.tenant, 0) + 1
    return held
