"""Counts of the tokens in a sequence, updated token by token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import copy

import numpy as np

_SMALLEST = 64


class PromptIds:
    """The distinct ids of a prompt, in order of appearance. Immutable: the sequences of a request
    share it.

    `ids` is int32, and `place` maps each id to its index there.
    """

    def __init__(self, prompt_token_ids: Sequence[int]) -> None:
        distinct = dict.fromkeys(prompt_token_ids)
        self.place = dict(zip(distinct, range(len(distinct)), strict=True))
        self.ids = np.fromiter(distinct, np.int32, len(distinct))


class Penalties:
    """Counts the tokens of the output, and for a repetition penalty also knows the prompt's.

    A token costs constant time, and a step's arrays cost nothing, as they are views. The state is a
    function of prompt and output, so a sequence that is admitted again replays its output.
    """

    def __init__(
        self,
        *,
        presence: float,
        frequency: float,
        repetition: float,
        prompt: PromptIds,
        output: Sequence[int],
    ) -> None:
        """`prompt` has the ids that count as seen before the output begins."""
        self.presence = presence
        self.frequency = frequency
        self.repetition = repetition
        self._prompt = prompt.place
        self._own: dict[int, int] = {}
        """Places of ids that are not in the prompt."""
        counts = Counter(output)
        known = len(self._prompt)
        room = max(_SMALLEST, known + len(counts))
        self._ids = np.zeros(room, np.int32)
        self._counts = np.zeros(room, np.int32)
        self._ids[:known] = prompt.ids
        for token, count in counts.items():
            self._counts[self._find(token)] = count

    def copy(self) -> Penalties:
        """Returns the same counts, which are advanced by themselves."""
        other = copy(self)
        other._own = dict(self._own)
        other._ids = self._ids.copy()
        other._counts = self._counts.copy()
        return other

    @property
    def ids(self) -> np.ndarray:
        """Distinct ids of the output and, if there is a repetition penalty, of the prompt."""
        return self._ids[: len(self._prompt) + len(self._own)]

    @property
    def counts(self) -> np.ndarray:
        """How often the output contains each of `ids`."""
        return self._counts[: len(self._prompt) + len(self._own)]

    def advance(self, token: int) -> None:
        """Counts a token that was emitted."""
        place = self._find(token)  # May move the counts to a larger array.
        self._counts[place] += 1

    def _find(self, token: int) -> int:
        place = self._prompt.get(token)
        if place is None:
            place = self._own.get(token)
        if place is None:
            place = self._own[token] = len(self._prompt) + len(self._own)
            if place == len(self._ids):
                self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
                self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
            self._ids[place] = token
        return place
