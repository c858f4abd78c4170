"""The tokens of a slot as those who look drafts up see them."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.protocol.to_worker import NewSequence, Plan
from penstock_worker.batch.slots import Slot, Slots
from penstock_worker.speculation.look_pace import LookPace
from penstock_worker.speculation.run_search import RunIndex, run_search


class FollowedSlot:
    """A slot whose tokens are indexed as they come."""

    def __init__(self, slot: Slot, new: NewSequence, like: FollowedSlot | None) -> None:
        self.slot = slot
        self.scope: bytes = new.draft_scope if like is None else like.scope
        self.prediction: list[int] = new.prediction if like is None else like.prediction
        self.guess: list[int] = []
        """What was last said to follow its tokens."""
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
    """All slots that have sequences."""

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
