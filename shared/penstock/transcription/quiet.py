"""Finds where to cut a long recording: at its quietest places."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np  # Below where it is needed: who never transcribes starts without it.

SEARCHED = 1 / 6
"""Share of a window, counted from its end, in which a quiet place is looked for."""
SMOOTHED_SECONDS = 0.2
"""Over which loudness is averaged: a stop consonant is no pause."""


def windows(mel: np.ndarray, window: int, frames_per_second: int) -> list[tuple[int, int]]:
    """(begin, end) of each window, frames; at most `window` each. A cut lies in the middle of the
    quietest stretch near a window's end.

    mel: [bins, frames] float32, logarithms of power.
    """
    total = mel.shape[1]
    loudness = _smoothed(mel.mean(axis=0, dtype="float64"), frames_per_second)
    found = []
    begin = 0
    while total - begin > window:
        earliest = begin + window - max(1, round(window * SEARCHED))
        end = earliest + int(loudness[earliest : begin + window].argmin())
        found.append((begin, end))
        begin = end
    found.append((begin, total))
    return found


def _smoothed(loudness: np.ndarray, frames_per_second: int) -> np.ndarray:
    """[frames] float64: means around each frame."""
    import numpy as np

    half = max(1, round(SMOOTHED_SECONDS * frames_per_second / 2))
    sums = np.concatenate(([0.0], np.cumsum(loudness)))
    at = np.arange(len(loudness))
    low, high = np.maximum(at - half, 0), np.minimum(at + half + 1, len(loudness))
    return np.asarray((sums[high] - sums[low]) / (high - low))
