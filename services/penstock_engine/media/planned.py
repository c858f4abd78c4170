"""What the plan that is being made has encoded: for whom, and who counts on it."""

from __future__ import annotations

from penstock_engine.media.entry import MediaEntry
from penstock_engine.request.request import Sequence


class PlannedEncodings:
    """Whose turn it was when an item was put into the plan, and whose tokens need it there.

    One of them may find no KV blocks, and get no tokens. What only such ones count on is taken
    back: in a plan that isn't sent it would take a step's share from others for ever.
    """

    def __init__(self) -> None:
        self._first: dict[str, Sequence] = {}
        """The sequence for which each item was put into the plan, by the item's name."""
        self._users: dict[str, dict[Sequence, None]] = {}
        self._costs: dict[Sequence, int] = {}
        """Rows that were encoded for each, and not charged yet."""

    def add(self, entry: MediaEntry, sequence: Sequence) -> None:
        """The plan has all of it encoded for a sequence."""
        self._first[entry.name] = sequence
        self._users[entry.name] = {sequence: None}
        self.charge(entry, sequence)

    def charge(self, entry: MediaEntry, sequence: Sequence) -> None:
        """It is encoded for a sequence, in this plan and others perhaps."""
        self._costs[sequence] = self._costs.get(sequence, 0) + entry.rows
        if sequence.timeline is not None:
            sequence.timeline.encoded_items += 1

    def use(self, entry: MediaEntry, sequence: Sequence) -> None:
        """One more has tokens that need it, if the plan has it encoded."""
        users = self._users.get(entry.name)
        if users is not None:
            users[sequence] = None

    def unused(self, sequence: Sequence) -> list[str]:
        """It gets no tokens. Items that the plan has encoded for nobody now."""
        for users in self._users.values():
            users.pop(sequence, None)
        return [name for name, users in self._users.items() if not users]

    def take_back(self, entry: MediaEntry) -> None:
        """The plan doesn't have it encoded after all, and nobody is charged for it."""
        del self._users[entry.name]
        first = self._first.pop(entry.name)
        if first in self._costs:
            self._costs[first] -= entry.rows
        if first.timeline is not None:
            first.timeline.encoded_items -= 1

    def take_cost(self, sequence: Sequence) -> int:
        """Rows that it is to be charged for."""
        return self._costs.pop(sequence, 0) if self._costs else 0

    def sent(self) -> None:
        """The plan is made."""
        self._first.clear()
        self._users.clear()

    def clear(self) -> None:
        """There is no worker any more."""
        self.sent()
        self._costs.clear()
