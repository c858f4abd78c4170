"""A sound's magnitudes in bands of the mel scale, as Gemma 4 reads it.

Source: transformers' Gemma4AudioFeatureExtractor, which has the same numbers; the mel scale is
HTK's.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from penstock.media.layout import windows_of
from penstock.model.media_facts import FrameMel

_BLOCK = 3000
"""Windows that are transformed at a time: bounds the memory of a long sound."""


def magnitude_mel(mel: FrameMel, samples: np.ndarray) -> np.ndarray:
    """float32 [1, bins, windows] of float32 samples at the model's rate. Raises BadLength."""
    count = windows_of(mel, len(samples))
    before = np.zeros(mel.frame // 2, np.float32)
    padded = np.concatenate((before, samples.astype(np.float32, copy=False)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, mel.frame)[:: mel.hop][:count]
    shape = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(mel.frame) / mel.frame)).astype(np.float32)
    bands = _bands(mel)
    out = np.empty((1, mel.bins, count), np.float32)
    for begin in range(0, count, _BLOCK):
        spectrum = np.abs(np.fft.rfft(windows[begin : begin + _BLOCK] * shape, n=mel.n_fft))
        logs = np.log(spectrum @ bands + mel.floor)
        out[0, :, begin : begin + len(logs)] = logs.T
    return out


@functools.lru_cache(4)
def _bands(mel: FrameMel) -> np.ndarray:
    """float64 [frequencies, bins]: triangles of equal width on the mel scale, each of height 1."""
    frequencies = np.linspace(0, mel.sampling_rate // 2, 1 + mel.n_fft // 2)
    low, high = (2595.0 * math.log10(1.0 + end / 700.0) for end in (mel.lowest, mel.highest))
    corners = 700.0 * (10.0 ** (np.linspace(low, high, mel.bins + 2) / 2595.0) - 1.0)
    widths = np.diff(corners)
    distance = corners[None, :] - frequencies[:, None]
    rising, falling = -distance[:, :-2] / widths[:-1], distance[:, 2:] / widths[1:]
    return np.maximum(0.0, np.minimum(rising, falling))
