"""Recordings that the tiny model has never heard, and how much of them it gets right."""

from __future__ import annotations

import numpy as np

from testing.trained.hearing.recordings import SpokenText, say

SEED = 20_261_122
"""The seed of what is asked; training has others."""


def unheard(count: int, seconds: float, words: int | None = None) -> list[SpokenText]:
    """Texts that training hasn't heard, equal ones each time. words: of each; None: as many as
    fit."""
    rng = np.random.default_rng([SEED, round(10 * seconds), 99 if words is None else words])
    return [say(rng, seconds, words) for _ in range(count)]


def word_errors(said: str, heard: str) -> int:
    """Words that were missed, added or mistaken: the least number of changes between the texts."""
    ours, theirs = said.split(), heard.split()
    row = list(range(len(theirs) + 1))
    for at, word in enumerate(ours, 1):
        before, row[0] = row[0], at
        for place, other in enumerate(theirs, 1):
            least = min(row[place] + 1, row[place - 1] + 1, before + (word != other))
            before, row[place] = row[place], least
    return row[-1]
