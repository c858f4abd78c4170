"""Which tokens a sequence holds, kept token by token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

_SMALLEST = 64


class PromptIds:
    """Which ids a prompt holds, each once, in the order in which they appear. Not changed: the
    sequences of a request share one.

    place: of each among `ids`, which are int32.
    """

    def __init__(self, prompt_token_ids: Sequence[int]) -> None:
        distinct = dict.fromkeys(prompt_token_ids)
        self.place = dict(zip(distinct, range(len(distinct)), strict=True))
        self.ids = np.fromiter(distinct, np.int32, len(distinct))


class Penalties:
    """Counts what the output holds, and knows what the prompt does where that matters.

    A token costs constant time, and a step's arrays nothing: they are views.  Its state is a
    function of prompt and output, so whoever is admitted again replays its output.
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
        """prompt: what counts as seen before the output begins."""
        self.presence = presence
        self.frequency = frequency
        self.repetition = repetition
        self._prompt = prompt.place
        self._own: dict[int, int] = {}
        """Places of ids that the prompt doesn't hold."""
        counts = Counter(output)
        known = len(self._prompt)
        room = max(_SMALLEST, known + len(counts))
        self._ids = np.zeros(room, np.int32)
        self._counts = np.zeros(room, np.int32)
        self._ids[:known] = prompt.ids
        for token, count in counts.items():
            self._counts[self._find(token)] = count

    @property
    def ids(self) -> np.ndarray:
        """Each once: what the output holds, and where there is a repetition penalty, the prompt."""
        return self._ids[: len(self._prompt) + len(self._own)]

    @property
    def counts(self) -> np.ndarray:
        """How often the output holds each of `ids`."""
        return self._counts[: len(self._prompt) + len(self._own)]

    def advance(self, token: int) -> None:
        """The output has one token more."""
        place = self._find(token)  # May put the counts into a larger array.
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
