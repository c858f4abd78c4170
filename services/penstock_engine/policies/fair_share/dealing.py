"""How the tokens of a step are dealt out among tenants that together want more."""

from __future__ import annotations

import heapq
from collections.abc import Sequence as Items

from penstock_engine.policies.fair_share.accounts import (
    GENERATED_COST,
    PROMPT_COST,
    Account,
    Accounts,
)
from penstock_engine.request.request import Sequence

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

    Before that, the decodes of each have three quarters of its share of the step: whoever comes
    with a claim to more than it has had takes it over some steps, and doesn't make the others'
    streams stand still meanwhile.
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
