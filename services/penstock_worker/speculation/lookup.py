"""A proposer that looks drafts up among tokens that there have been."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from penstock.protocol.to_worker import Plan, SlotWork
from penstock_worker.batch.slots import Slots
from penstock_worker.speculation.following import FollowedSlot, FollowedSlots
from penstock_worker.speculation.interface import Proposer


class RunLengths(NamedTuple):
    """How long the runs are that are looked for."""

    least: int
    most: int


class Lookup(Protocol):
    """A way to look drafts up. Sequences may be looked at by several threads at once, each by one
    of them."""

    def guess(self, followed: FollowedSlot, most: int) -> list[int]:
        """Returns at most `most` ids that may follow."""

    def ended(self, followed: FollowedSlot) -> None:
        """The sequence is gone. Called between steps."""

    def clear(self) -> None:
        """Forgets everything, because a new session with the engine core begins."""


class LookupProposer(Proposer):
    """Asks several ways in turn; the first that has an idea is followed."""

    def __init__(
        self, slots: Slots, ways: Sequence[Lookup], most: int, *, together: bool = False
    ) -> None:
        """`most`: ids of a draft. `together`: other ranks draft the same, and may be asked for
        `proposed` at other times."""
        self._slots = slots
        self._ways = ways
        self._most = most
        self._together = together
        self._followed = FollowedSlots(slots)

    def take(self, plan: Plan) -> None:
        for followed in self._followed.take(plan):
            for way in self._ways:
                way.ended(followed)

    def propose(self, scheduled: Sequence[SlotWork]) -> list[list[int]]:
        return [self._of_work(work) if work.draft else [] for work in scheduled]

    def proposed(self, slot: int) -> int:
        if slot not in self._followed:
            return 0
        followed = self._followed[slot]
        known = followed.known
        if followed.guessed_at == known:
            return len(followed.guess)
        followed.judge(known)
        if not followed.pace.due(known) and not followed.prediction:
            return 0
        guess = self._look_up(followed, self._most)
        followed.pace.looked(known, found=bool(guess))
        followed.guess, followed.guessed_at = guess, known
        return len(guess)

    def first(self, slot: int) -> int | None:
        if slot not in self._followed:
            return None
        followed = self._followed[slot]
        if not followed.guess or followed.guessed_at != followed.known - 1:
            return None
        return followed.guess[0]

    def reset(self) -> None:
        self._followed.clear()
        for way in self._ways:
            way.clear()

    def _of_work(self, work: SlotWork) -> list[int]:
        if work.start + work.count < len(self._slots[work.slot].token_ids):
            return []
        followed, most = self._followed[work.slot], min(work.draft, self._most)
        if not self._together and followed.guessed_at == followed.known:
            return followed.guess[:most]
        return self._look_up(followed, most)

    def _look_up(self, followed: FollowedSlot, most: int) -> list[int]:
        for way in self._ways:
            guess = way.guess(followed, most)
            if guess:
                return guess
        return []
