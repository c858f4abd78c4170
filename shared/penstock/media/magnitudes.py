"""A sound's magnitudes, or powers, in bands of HTK's mel scale, as Gemma 3n, Gemma 4, Granite
Speech and Phi-4-multimodal read it.

Sources: transformers' Gemma3nAudioFeatureExtractor, Gemma4AudioFeatureExtractor,
GraniteSpeechFeatureExtractor and Phi4MultimodalFeatureExtractor, which have the same numbers.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from penstock.media.log_mel import FLOOR, HIGHEST, RANGE
from penstock.model.sound_facts import EmphasisedMel, FrameMel, HammingMel, PairedMel

_BLOCK = 3000
"""Windows that are transformed at a time: bounds the memory of a long sound."""


def magnitude_mel(mel: FrameMel, samples: np.ndarray) -> np.ndarray:
    """float32 [1, bins, windows] of float32 samples at the model's rate. Raises BadLength."""
    count = mel.windows(len(samples))
    before = np.zeros(mel.frame // 2, np.float32)
    padded = np.concatenate((before, samples.astype(np.float32, copy=False)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, mel.frame)[:: mel.hop][:count]
    shape = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(mel.frame) / mel.frame)).astype(np.float32)
    bands = _bands(mel.sampling_rate, mel.n_fft, mel.bins, mel.lowest, mel.highest)
    out = np.empty((1, mel.bins, count), np.float32)
    for begin in range(0, count, _BLOCK):
        spectrum = np.abs(np.fft.rfft(windows[begin : begin + _BLOCK] * shape, n=mel.n_fft))
        logs = np.log(spectrum @ bands + mel.floor)
        out[0, :, begin : begin + len(logs)] = logs.T
    return out


def emphasised_mel(mel: EmphasisedMel, samples: np.ndarray) -> np.ndarray:
    """float32 [1, bins, windows] of float32 samples at the model's rate; a window's first sample is
    less a share of itself. Raises BadLength."""
    count = mel.windows(len(samples))
    whole = np.zeros(mel.padded(len(samples)), np.float32)
    whole[: len(samples)] = samples
    windows = np.lib.stride_tricks.sliding_window_view(whole, mel.frame)[:: mel.hop][:count]
    # The window in float32, and the shares in these steps, as roundings show where a band is nearly
    # silent.
    shape = 0.5 * (1 - np.cos(2 * np.pi * np.arange(mel.frame, dtype=np.float32) / mel.frame))
    less = mel.emphasis
    bands = _bands(mel.sampling_rate, mel.n_fft, mel.bins, mel.lowest, mel.highest)
    out = np.empty((1, mel.bins, count), np.float32)
    for begin in range(0, count, _BLOCK):
        part = windows[begin : begin + _BLOCK]
        rest = part[:, 1:] - less * part[:, :-1]
        emphasised = np.concatenate((part[:, :1] * (1.0 - less), rest), axis=1)
        spectrum = np.abs(np.fft.rfft(emphasised * shape, n=mel.n_fft))
        logs = np.log(np.maximum(spectrum @ bands, mel.floor))
        out[0, :, begin : begin + len(logs)] = logs.T
    return out


def paired_mel(mel: PairedMel, samples: np.ndarray) -> np.ndarray:
    """float32 [1, bins, windows] of float32 samples at the model's rate; a window that is left over
    counts for the loudest, and is left out. Raises BadLength."""
    kept_windows = mel.frames(len(samples))
    count, spare = len(samples) // mel.hop + 1, mel.n_fft - mel.frame
    padded = np.pad(samples.astype(np.float32, copy=False), mel.n_fft // 2, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, mel.n_fft)[:: mel.hop][:count]
    shape = np.pad(np.hanning(mel.frame + 1)[:-1], (spare // 2, spare - spare // 2))
    bands = _bands(mel.sampling_rate, mel.n_fft, mel.bins, 0.0, HIGHEST)
    out = np.empty((mel.bins, count), np.float32)
    for begin in range(0, count, _BLOCK):
        spectrum = np.abs(np.fft.rfft(windows[begin : begin + _BLOCK] * shape)) ** 2
        logs = np.log10(np.maximum(spectrum @ bands, FLOOR))
        out[:, begin : begin + len(logs)] = logs.T
    kept = np.maximum(out, out.max() - RANGE) / 4.0 + 1.0
    return np.ascontiguousarray(kept[None, :, :kept_windows], np.float32)


SIXTEEN_BITS = 32_768
"""What samples are multiplied by: the makers' code has them as integers."""


def hamming_mel(mel: HammingMel, samples: np.ndarray) -> np.ndarray:
    """float32 [1, bins, windows] of float32 samples at the model's rate; a window's first sample is
    less a share of itself. Raises BadLength."""
    count = mel.frames(len(samples))
    whole = samples.astype(np.float32, copy=False)
    windows = np.lib.stride_tricks.sliding_window_view(whole, mel.frame)[:: mel.hop][:count]
    shape = 0.54 - 0.46 * np.cos(2 * np.pi * np.arange(mel.frame) / (mel.frame - 1))
    bands = _mel_bands(mel).astype(np.float32)
    out = np.empty((1, mel.bins, count), np.float32)
    for begin in range(0, count, _BLOCK):
        part = windows[begin : begin + _BLOCK]
        before = np.concatenate((part[:, :1], part[:, :-1]), axis=1)
        emphasised = (part - np.float32(mel.emphasis) * before) * np.float32(SIXTEEN_BITS)
        spectrum = np.fft.rfft(emphasised * shape, n=mel.n_fft).astype(np.complex64)
        logs = np.log(np.maximum(np.abs(spectrum) ** 2 @ bands, np.float32(1.0)))
        out[0, :, begin : begin + len(logs)] = logs.T
    return out


@functools.lru_cache(4)
def _mel_bands(mel: HammingMel) -> np.ndarray:
    """float64 [frequencies, bins]: triangles of equal width, and of straight sides, on the mel
    scale, each of height 1."""

    def of_mel(hertz: np.ndarray) -> np.ndarray:
        return np.asarray(1127.0 * np.log(1.0 + hertz / 700.0))

    low, high = of_mel(np.array([mel.lowest, mel.highest]))
    corners = np.linspace(low, high, mel.bins + 2)
    width = mel.sampling_rate / (mel.n_fft // 2 * 2)
    distance = corners[None, :] - of_mel(width * np.arange(1 + mel.n_fft // 2))[:, None]
    widths = np.diff(corners)
    rising, falling = -distance[:, :-2] / widths[:-1], distance[:, 2:] / widths[1:]
    return np.maximum(0.0, np.minimum(rising, falling))


@functools.lru_cache(4)
def _bands(rate: int, n_fft: int, bins: int, lowest: float, highest: float) -> np.ndarray:
    """float64 [frequencies, bins]: triangles of equal width on the mel scale, each of height 1."""
    frequencies = np.linspace(0, rate // 2, 1 + n_fft // 2)
    low, high = (2595.0 * math.log10(1.0 + end / 700.0) for end in (lowest, highest))
    corners = 700.0 * (10.0 ** (np.linspace(low, high, bins + 2) / 2595.0) - 1.0)
    widths = np.diff(corners)
    distance = corners[None, :] - frequencies[:, None]
    rising, falling = -distance[:, :-2] / widths[:-1], distance[:, 2:] / widths[1:]
    return np.maximum(0.0, np.minimum(rising, falling))
