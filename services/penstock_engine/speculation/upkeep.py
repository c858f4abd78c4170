"""Whether it pays that a head keeps up with the sequences: it computes a row of its own for each of
their tokens, whether drafts are asked for or not."""

from __future__ import annotations

from dataclasses import dataclass

FIRST, MOST = 1.0, 4.0
"""In steps: what upkeep may cost at first, and at most at a time, before drafts have saved as
much."""

SHARE = 0.004
"""Share of all steps' time that it may cost beyond what drafts save."""

LEAST_REST, MOST_REST = 256, 8192
"""Steps for which a head rests when its account is overdrawn: at first, and at most."""


@dataclass
class _Account:
    """What is known of steps of about the same number of sequences."""

    credit: float = FIRST
    rest: int = 0  # Steps that are left of the present rest.
    next: int = LEAST_REST  # How long the next one is.


class Upkeep:
    """An account in steps, for each size of a batch, of what a head's upkeep costs and of what its
    drafts save. Where it is overdrawn, the head rests: it forgets the sequences that it meets
    meanwhile, and follows those that start later. Each rest is twice as long as the one before,
    until drafts have paid again."""

    def __init__(self) -> None:
        self._accounts: dict[int, _Account] = {}

    def rests(self, sequences: int) -> bool:
        """Whether a head is to rest in a step of so many sequences."""
        return self._of(sequences).rest > 0

    def settled(self, sequences: int, gain: float, cost: float, passes: int) -> None:
        """A step of so many sequences was settled. gain, cost: in such steps, what its drafts have
        saved, and what keeping up took."""
        account = self._of(sequences)
        if account.rest:
            account.rest = max(0, account.rest - passes)
            return
        account.credit = min(MOST, account.credit + gain - cost + SHARE * passes)
        if gain > 0.0 and account.credit == MOST:
            account.next = LEAST_REST
        elif cost and account.credit < 0.0:
            account.rest, account.credit = account.next, FIRST
            account.next = min(2 * account.next, MOST_REST)

    def _of(self, sequences: int) -> _Account:
        return self._accounts.setdefault(sequences.bit_length(), _Account())
