"""Sequences that wait outside the queue for something of their own: media, or an adapter."""

from __future__ import annotations

from itertools import islice

from penstock_engine.kv.pool import BrokenState
from penstock_engine.parts import HoldsSequences
from penstock_engine.request.request import Request, Sequence
from penstock_engine.waiting.queue import Part


class ParkedSequences:
    """The sequences that wait outside the queue, and how much waits of each tenant's.

    line: those whose items have no room yet, in order.  They hold no items, so that the first of
    them gets what others don't use.
    """

    def __init__(self) -> None:
        self.line: dict[Sequence, None] = {}
        self._parked: dict[Sequence, int] = {}
        """Each parked sequence, with the number of tokens that it need not compute."""
        self._waiting_of: dict[str, list[int]] = {}
        """Numbers of parked requests, of their sequences and of their tokens, by tenant."""
        self._requests: dict[Request, int] = {}
        """How many sequences of each request wait here."""

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._parked

    def __len__(self) -> int:
        return len(self._parked)

    def all(self) -> list[Sequence]:
        """Parked sequences in the order in which they came."""
        return list(self._parked)

    def first(self, count: int) -> list[Sequence]:
        """The first `count` of them."""
        return list(islice(self._parked, count))

    def computed(self, sequence: Sequence) -> int:
        """Tokens that one of them need not compute."""
        return self._parked[sequence]

    def add(self, sequence: Sequence, computed: int) -> None:
        """Adds a sequence, which waits here from now on."""
        self._parked[sequence] = computed
        self._count(sequence, 1)

    def remove(self, sequence: Sequence) -> None:
        """Removes a sequence, which waits no longer."""
        del self._parked[sequence]
        self.line.pop(sequence, None)
        self._count(sequence, -1)

    def clear(self) -> None:
        """Removes all sequences."""
        self.line.clear()
        self._parked.clear()
        self._waiting_of.clear()
        self._requests.clear()

    def part_of(self, tenant: str | None = None) -> Part:
        """What waits here; of one tenant, if one is named. A request of which something waits in
        the queue too is counted there as well."""
        if tenant is not None:
            return Part(*self._waiting_of.get(tenant, (0, 0, 0)))
        tokens = sum(counts[2] for counts in self._waiting_of.values())
        return Part(len(self._requests), len(self._parked), tokens)

    def _count(self, sequence: Sequence, sign: int) -> None:
        request = sequence.request
        before = self._requests.pop(request, 0)
        if before + sign:
            self._requests[request] = before + sign
        counts = self._waiting_of.setdefault(request.tenant, [0, 0, 0])
        counts[0] += (before + sign > 0) - (before > 0)
        counts[1] += sign
        counts[2] += sign * sequence.num_tokens
        if not counts[1]:
            del self._waiting_of[request.tenant]

    def check(self) -> None:
        """Raises BrokenState unless the counts are right."""
        waiting = Part(
            len({s.request for s in self._parked}),
            len(self._parked),
            sum(s.num_tokens for s in self._parked),
        )
        counted = [sum(part) for part in zip(*self._waiting_of.values(), strict=True)]
        if self.part_of() != waiting or (counted or [0, 0, 0]) != [*waiting]:
            raise BrokenState(f"{counted} are counted of those that wait aside, {waiting}")
        if not self.line.keys() <= self._parked.keys():
            raise BrokenState("somebody is in line for items who doesn't wait")


class KeepsParked(HoldsSequences):
    """What managers of such sequences say of them."""

    _parked: ParkedSequences

    @property
    def num_waiting(self) -> int:
        """Sequences that it has taken out of the queue."""
        return len(self._parked)

    def parked(self) -> list[Sequence]:
        """All parked sequences, in the order in which they came."""
        return self._parked.all()

    def first_parked(self, count: int) -> list[Sequence]:
        """The first `count` of them."""
        return self._parked.first(count)

    def part_of(self, tenant: str | None = None) -> Part:
        """What waits here; of one tenant, if one is named."""
        return self._parked.part_of(tenant)
