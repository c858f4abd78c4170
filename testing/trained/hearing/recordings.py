"""Made-up recordings: digits that somebody says, and when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from testing.trained.hearing.synthesiser import DIGITS, RATE, Speaker, spoken

LONG_PAUSE = 0.5
"""Seconds. A longer pause ends a segment."""


@dataclass(frozen=True, slots=True)
class Word:
    """start, end: samples."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SpokenText:
    """samples: float32."""

    samples: np.ndarray
    words: list[Word]

    @property
    def text(self) -> str:
        return " ".join(word.text for word in self.words)

    def segments(self) -> list[list[Word]]:
        """Words without a long pause between them."""
        found: list[list[Word]] = []
        for word in self.words:
            if found and word.start - found[-1][-1].end < LONG_PAUSE * RATE:
                found[-1].append(word)
            else:
                found.append([word])
        return found


def say(rng: np.random.Generator, seconds: float, words: int | None = None) -> SpokenText:
    """Random digits by a random speaker, with pauses short and long, over a little noise.

    seconds: of the recording; as many words as fit, or as are given.
    """
    total = round(seconds * RATE)
    samples = rng.normal(0, 1, total) * 10 ** rng.uniform(-4, -2.3)
    speaker, loudness = Speaker.drawn(rng), rng.uniform(0.3, 1.0)
    found: list[Word] = []
    at = round(rng.uniform(0.05, 0.5) * RATE)
    while words is None or len(found) < words:
        word = str(rng.choice(list(DIGITS)))
        sound = spoken(word, speaker, rng)
        if at + len(sound) > total:
            break
        samples[at : at + len(sound)] += sound * loudness * rng.uniform(0.7, 1.0)
        found.append(Word(word, at, at + len(sound)))
        long = rng.random() < 0.2
        at += len(sound) + round(rng.uniform(*((0.6, 1.2) if long else (0.03, 0.25))) * RATE)
    return SpokenText(np.asarray(np.clip(samples, -1, 1), np.float32), found)
