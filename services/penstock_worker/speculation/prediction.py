"""Drafts from what a request says that its output will resemble."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from penstock_worker.speculation.following import FollowedSlot
from penstock_worker.speculation.lookup import RunLengths
from penstock_worker.speculation.matches import FoundRun, longest_matches
from penstock_worker.speculation.token_index import TokenIndex


class _Followed:
    """How far an output has followed its prediction."""

    def __init__(self, prediction: list[int], width: int) -> None:
        self.index = TokenIndex(width, prediction)
        self.index.extend(len(prediction) - 1)
        self.seen = 0
        """Emitted tokens that `at` takes into account."""
        self.at = 0
        """The prediction's token that comes next if the output follows it."""
        self.astray = False
        """Whether the output has left it."""


class PredictionLookup:
    """Follows `Submit.prediction` from its beginning. Where the output leaves it, it is taken up
    again after the longest run of the output's last tokens that it has, and of several such runs
    after the next one."""

    def __init__(self, reach: RunLengths) -> None:
        self._reach = reach
        self._states: WeakKeyDictionary[FollowedSlot, _Followed] = WeakKeyDictionary()

    def guess(self, followed: FollowedSlot, most: int) -> list[int]:
        if not followed.prediction:
            return []
        state = self._states.get(followed)
        if state is None:
            state = self._states[followed] = _Followed(followed.prediction, self._reach.least)
        self._follow(state, followed)
        if state.astray:
            return []
        return followed.prediction[state.at : state.at + most]

    def ended(self, followed: FollowedSlot) -> None:
        self._states.pop(followed, None)

    def clear(self) -> None:
        self._states.clear()

    def _follow(self, state: _Followed, followed: FollowedSlot) -> None:
        slot, prediction = followed.slot, followed.prediction
        known = followed.known - slot.num_prompt
        for count in range(state.seen + 1, known + 1):
            token = slot.token_ids[slot.num_prompt + count - 1]
            if not state.astray and prediction[state.at : state.at + 1] == [token]:
                state.at += 1
            else:
                self._take_up(state, followed, count)
        state.seen = max(state.seen, known)

    def _take_up(self, state: _Followed, followed: FollowedSlot, emitted: int) -> None:
        end = followed.slot.num_prompt + emitted
        tail = followed.slot.token_ids[end - min(emitted, self._reach.most) : end]
        found = longest_matches(state.index, tail) if emitted >= self._reach.least else []
        state.astray = not found
        if found:
            state.at = _next(found, state.at) + 1


def _next(matches: list[FoundRun], at: int) -> int:
    """Returns the place of the first match that is not before `at`; of the last one if all are."""
    places = sorted(match.place for match in matches)
    return next((place for place in places if place >= at), places[-1])
