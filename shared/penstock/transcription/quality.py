"""Whether what a window was decoded to is to be believed (Radford et al. 2022, section 4.5)."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Temperatures that are tried one after another until the output is believed."""
MAX_COMPRESSION_RATIO = 2.4
"""A text that is compressed better than that repeats itself."""
MIN_AVERAGE_LOGPROB = -1.0
"""Less probable tokens were guessed."""
NO_SPEECH = 0.6
"""Probability of silence above which tokens of a low probability are taken for guesses: nothing was
said."""


@dataclass(frozen=True, slots=True)
class Quality:
    """How far a window's text is to be believed. average_logprob: of its tokens, the end included
    and timestamps left out; of the raw distribution."""

    compression_ratio: float
    average_logprob: float

    @property
    def is_repetitive(self) -> bool:
        return self.compression_ratio > MAX_COMPRESSION_RATIO

    @property
    def is_guessed(self) -> bool:
        return self.average_logprob < MIN_AVERAGE_LOGPROB


def compression_ratio(text: str) -> float:
    """Bytes of the text to those of its compressed form; 0 for no text."""
    data = text.encode()
    return len(data) / len(zlib.compress(data)) if data else 0.0
