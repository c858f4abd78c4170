"""The policy `fair`: weighted shares per tenant, in the queue, in the step and in the pool."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator
from collections.abc import Sequence as Items

from penstock.config.settings import SchedulerSettings
from penstock_engine.policies.fair_accounts import (
    BLOCK_COST,
    GENERATED_COST,
    PROMPT_COST,
    SCALE,
    Account,
    Accounts,
    FairQueue,
)
from penstock_engine.policies.first_come import OneLine
from penstock_engine.policies.order import LatestFirst, PriorityWithAgeing, QueueOrder
from penstock_engine.policies.pace import StepPace, pace_of
from penstock_engine.policies.policy import Shortage, Standing, Turn
from penstock_engine.policies.tenants import Tenants
from penstock_engine.request.request import Sequence
from penstock_engine.request.step_builder import StepBuilder

HANDS = 32
"""A step is dealt in about as many parts: so no long prompt fills it while others decode."""

MOST_STARTING = 32
"""Tenants that a step's tokens for newcomers are dealt out among."""


class Hand:
    """What one tenant wants of a step, and what it is dealt, in tokens."""

    __slots__ = (
        "account",
        "chunk",
        "chunks",
        "decodes",
        "for_chunks",
        "for_decodes",
        "for_fresh",
        "fresh",
    )

    def __init__(self, account: Account) -> None:
        self.account = account
        self.decodes: list[Sequence] = []  # running, with one token to compute
        self.chunks: list[Sequence] = []  # running, with more tokens to compute
        self.chunk = 0  # tokens that the chunks have to compute
        self.fresh = 0  # tokens of what waits and might start
        self.for_decodes = self.for_chunks = self.for_fresh = 0

    @property
    def wanted(self) -> int:
        return len(self.decodes) + self.chunk + self.fresh

    def take(self, most: int) -> tuple[int, int]:
        """Deals it some of what it wants: (tokens, at most `most`; their cost)."""
        tokens = min(most, len(self.decodes) - self.for_decodes)
        if tokens:
            self.for_decodes += tokens
            return tokens, tokens * GENERATED_COST
        tokens = min(most, self.chunk - self.for_chunks)
        if tokens:
            self.for_chunks += tokens
        else:
            tokens = min(most, self.fresh - self.for_fresh)
            self.for_fresh += tokens
        return tokens, tokens * PROMPT_COST


def hands_of(
    accounts: Accounts, decodes: list[Sequence], chunks: list[Sequence], fresh: int
) -> list[Hand]:
    """What each tenant wants, the least served first.

    decodes: running sequences with one token to compute.  chunks: those with more.  fresh: tokens
    for newcomers at most.
    """
    hands: dict[str, Hand] = {}

    def hand_of(tenant: str) -> Hand:
        hand = hands.get(tenant)
        if hand is None:
            hand = hands[tenant] = Hand(accounts[tenant])
        return hand

    for sequence in decodes:
        hand_of(sequence.request.tenant).decodes.append(sequence)
    for sequence in chunks:
        hand = hand_of(sequence.request.tenant)
        hand.chunks.append(sequence)
        hand.chunk += sequence.progress.expected - sequence.progress.scheduled
    if fresh:
        for account in accounts.first_waiting(MOST_STARTING):
            hand_of(account.name).fresh = min(fresh, account.tokens_waiting)
    return sorted(hands.values(), key=lambda hand: hand.account.place)


def deal(hands: Items[Hand], budget: int) -> None:
    """Deals `budget` tokens, each part to the tenant that has been given least by then.

    Before that, the decodes of each have three quarters of its share of the step: a tenant that has
    had less than its share catches up over some steps, without stopping the others' streams.
    """
    if sum(hand.wanted for hand in hands) <= budget:
        for hand in hands:
            hand.for_decodes, hand.for_chunks = len(hand.decodes), hand.chunk
            hand.for_fresh = hand.fresh
        return
    part = max(1, budget // HANDS)
    weights = 4 * sum(hand.account.weight for hand in hands)
    heap: list[tuple[int, int, int, Hand]] = []
    for place, hand in enumerate(hands):
        sure = min(len(hand.decodes), 3 * budget * hand.account.weight // weights)
        hand.for_decodes = sure
        time = hand.account.time + hand.account.price(sure * GENERATED_COST)
        heap.append((time, hand.account.serial, place, hand))
    budget -= sum(hand.for_decodes for hand in hands)
    heapq.heapify(heap)
    while budget and heap:
        time, serial, place, hand = heap[0]
        tokens, cost = hand.take(min(part, budget))
        if not tokens:
            heapq.heappop(heap)
            continue
        budget -= tokens
        heapq.heapreplace(heap, (time + hand.account.price(cost), serial, place, hand))


class FairRoom:
    """Takes from those who hold most for their weight.

    A sequence that has lost its blocks MOST_LOSSES times is spared until it has gained LEAST_GAIN
    tokens since it started again.  From the spared only their elders take blocks, and only for want
    of others, so the eldest finishes.
    """

    MOST_LOSSES = 2
    LEAST_GAIN = 16

    def __init__(self, accounts: Accounts, order: QueueOrder) -> None:
        self._accounts = accounts
        self._order = order
        self._latest = LatestFirst(order)

    def victim(self, running: Collection[Sequence], needy: Sequence) -> Sequence | None:
        """The latest of the tenant that holds most for its weight, if that is not `needy` or
        before it.  The spared are taken for want of others only, the latest first."""
        free = [s for s in running if s is needy or not self._spared(s)]
        held = _blocks_by_tenant(running)
        accounts = [self._accounts[s.request.tenant] for s in free]
        if accounts:
            most = max(accounts, key=lambda a: (held[a.name] * SCALE // a.weight, a.place))
            last = max((s for s in free if s.request.tenant == most.name), key=self._order.key)
            others = most.name != needy.request.tenant
            if others or self._order.key(last) > self._order.key(needy):
                return last
            if not any(map(self._spared, running)):
                return None  # Its own tenant's may be preempted for it: this ends.
        return self._latest.victim(running, needy)

    def _spared(self, sequence: Sequence) -> bool:
        gained = sequence.num_tokens - sequence.tokens_at_start
        return sequence.num_preemptions >= self.MOST_LOSSES and gained < self.LEAST_GAIN

    def make_way(
        self, head: Sequence, running: Iterable[Sequence], shortage: Shortage
    ) -> list[Sequence] | None:
        """Victims of tenants that have been given more and hold more, the latest first, and only
        while they go on holding no less than the head's tenant with it: so this is never undone."""
        mine = self._accounts[head.request.tenant]
        if not self._accounts.owes(mine):
            return None
        held = _blocks_by_tenant(running) if shortage.blocks > 0 else _slots_by_tenant(running)
        by_slots = shortage.blocks <= 0
        asked = held.get(mine.name, 0) + (1 if by_slots else shortage.needed)
        taken: list[Sequence] = []
        blocks, slots = shortage.blocks, shortage.slots
        for sequence in sorted(running, key=self._order.key, reverse=True):
            if blocks <= 0 and slots <= 0:
                break
            account = self._accounts[sequence.request.tenant]
            size = sequence.table.num_blocks if sequence.table is not None else 0
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
        size = sequence.table.num_blocks if sequence.table is not None else 0
        held[sequence.request.tenant] = held.get(sequence.request.tenant, 0) + size
    return held


def _slots_by_tenant(running: Iterable[Sequence]) -> dict[str, int]:
    held: dict[str, int] = {}
    for sequence in running:
        held[sequence.request.tenant] = held.get(sequence.request.tenant, 0) + 1
    return held


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

    def budget(self, budget: int, in_flight: int) -> int:
        """Limits a step's tokens so that all steps in flight together have one step's worth:
        otherwise a light tenant's request would find two whole steps before its own. So also
        while one tenant alone has work: that is when a light one's request comes."""
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

    def victim(self, running: Collection[Sequence], needy: Sequence) -> Sequence | None:
        return self._room.victim(running, needy)

    def make_way(
        self, head: Sequence, running: Iterable[Sequence], shortage: Shortage
    ) -> list[Sequence] | None:
        return self._room.make_way(head, running, shortage)
