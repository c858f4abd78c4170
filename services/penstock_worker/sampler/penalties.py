"""Which tokens a sequence holds, kept token by token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


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
        prompt: Sequence[int],
        output: Sequence[int],
    ) -> None:
        self.presence = presence
        self.frequency = frequency
        self.repetition = repetition
        self._place: dict[int, int] = {}
        self._ids = np.zeros(64, np.int32)
        self._counts = np.zeros(64, np.int32)
        if repetition != 1.0:
            for token in prompt:
                self._find(token)
        for token in output:
            self.advance(token)

    @property
    def ids(self) -> np.ndarray:
        """Each once: what the output holds, and where there is a repetition penalty, the prompt."""
        return self._ids[: len(self._place)]

    @property
    def counts(self) -> np.ndarray:
        """How often the output holds each of `ids`."""
        return self._counts[: len(self._place)]

    def advance(self, token: int) -> None:
        """The output has one token more."""
        place = self._find(token)  # May put the counts into a larger array.
        self._counts[place] += 1

    def _find(self, token: int) -> int:
        place = self._place.get(token)
        if place is None:
            place = self._place[token] = len(self._place)
            if place == len(self._ids):
                self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
                self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
            self._ids[place] = token
        return place
