"""Decides which sequences give up slots and blocks, if each tenant has a share of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from penstock_engine.policies.fair_share.accounts import SCALE, Account, Accounts
from penstock_engine.policies.order import QueueOrder
from penstock_engine.policies.policy import Shortage
from penstock_engine.policies.preemption import LatestFirst
from penstock_engine.request.request import Sequence


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
                return None  # Whoever needs blocks can take the needy's own: this ends.
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
