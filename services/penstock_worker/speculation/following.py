"""The tokens of a slot as those who look drafts up see them."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.protocol.to_worker import NewSequence, Plan
from penstock_worker.batch.slots import Slot, Slots
from penstock_worker.speculation.run_search import RunIndex, run_search


class FollowedSlot:
    """A slot whose tokens are indexed as they come."""

    def __init__(self, slot: Slot, new: NewSequence, like: FollowedSlot | None) -> None:
        self.slot = slot
        self.scope: bytes = new.draft_scope if like is None else like.scope
        self.prediction: list[int] = new.prediction if like is None else like.prediction
        self.guess: list[int] = []
        """The latest guess of what follows the slot's tokens."""
        self.guessed_at = -1
        """How many tokens were known then."""
        self.pace = LookPace()
        self._like = like
        self._prompt: RunIndex | None = None
        self._index: RunIndex | None = None

    @property
    def known(self) -> int:
        """Number of its tokens that the host knows."""
        return self.slot.known

    def judge(self, known: int) -> None:
        """More tokens are known, and the last guess is of no use any more."""
        if self.guess and 0 <= self.guessed_at < known:
            self.pace.judge(self.guess, self.slot.token_ids[self.guessed_at])
        self.guess, self.guessed_at = [], -1

    def tail(self, most: int) -> list[int]:
        """Returns its last tokens that are known, at most `most`."""
        known = self.known
        return self.slot.token_ids[max(0, known - most) : known]

    def index(self, width: int) -> RunIndex:
        """Returns an index of all runs but the last one. It is made at the first call, and is an
        index of the prompt that all sequences of a request share, and one of the output."""
        if self._index is None:
            prompt = self._prompt_index(width)
            self._index = run_search().index(width, self.slot.token_ids, prompt, prompt.end)
        self._index.extend(self.known - 1)
        return self._index

    def _prompt_index(self, width: int) -> RunIndex:
        if self._prompt is None:
            if self._like is not None:
                self._prompt = self._like._prompt_index(width)
                self._like = None
            else:
                prompt = run_search().index(width, self.slot.token_ids[: self.slot.num_prompt])
                prompt.extend(self.slot.num_prompt - 1)
                self._prompt = prompt
        return self._prompt


class FollowedSlots:
    """The slots that have sequences, whose tokens are followed."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._held: dict[int, FollowedSlot] = {}

    def __getitem__(self, number: int) -> FollowedSlot:
        return self._held[number]

    def __contains__(self, number: int) -> bool:
        return number in self._held

    def clear(self) -> None:
        self._held.clear()

    def take(self, plan: Plan) -> Sequence[FollowedSlot]:
        """Follows the plan's releases and admissions. Returns what was released."""
        held = self._held
        # One that is released in the plan may be named by it: others are like it before it goes.
        released = [held.pop(number) for number in plan.released if number in held]
        for new in plan.admitted:
            like = None if new.like is None else held.get(new.like)
            held[new.slot] = FollowedSlot(self._slots[new.slot], new, like)
        return released


WRONG = 3
"""Guesses in a row that may be wrong before a sequence is left alone for a while."""
LONGEST = 16
"""Tokens for which it is left alone at most."""
IDLE, GLANCE = 8, 4
"""After IDLE tokens in a row with nothing found, only every GLANCE-th token is looked at."""


class LookPace:
    """A look costs up to 12 µs of every step, and of each sequence in it; 50 without the kernels'
    library. Text that repeats nothing gains nothing by that: so where guesses turn out wrong, or
    there are none, looks become rare. One guess that is right brings them all back."""

    __slots__ = ("_idle", "_next", "_wrong")

    def __init__(self) -> None:
        self._wrong = 0  # guesses in a row
        self._idle = 0  # looks in a row that found nothing
        self._next = 0  # number of tokens at the next look

    def due(self, known: int) -> bool:
        """Whether there is a look, where so many tokens are known."""
        return known >= self._next

    def judge(self, guess: Sequence[int], came: int) -> None:
        """`came`: the token that came where `guess` was expected."""
        self._wrong = 0 if guess[0] == came else self._wrong + 1

    def looked(self, known: int, *, found: bool) -> None:
        """Notes a look at what could be drafted, and whether anything was found."""
        self._idle = 0 if found else self._idle + 1
        rest = GLANCE if self._idle > IDLE else 1
        if self._wrong > WRONG:
            rest = max(rest, min(2 ** (self._wrong - WRONG), LONGEST))
        self._next = known + rest
