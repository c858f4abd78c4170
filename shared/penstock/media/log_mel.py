"""A sound's log-mel spectrogram, as Whisper and its relatives read it.

Source: Radford et al., "Robust speech recognition via large-scale weak supervision", 2022; the mel
scale is that of Slaney, "Auditory toolbox", 1998. transformers' WhisperFeatureExtractor has the
same numbers where it computes with NumPy.
"""

from __future__ import annotations

import functools

import numpy as np

from penstock.model.sound_facts import BlockMel, LogMel

LOG_MEL = "mel"
"""Name of a prepared sound's array: float32 [chunks, bins, frames]."""
BESIDE = "beside_pictures"
"""Name of an array that says that a sound's prompt has pictures too, where that matters: int32 [1],
1."""
HIGHEST = 8000.0
"""Hz, of the last band."""
FLOOR = 1e-10
RANGE = 8.0
"""Powers of ten below the loudest; what is more quiet counts as that."""
_BLOCK = 3000
"""Windows that are transformed at a time: bounds the memory of a long sound."""
_LINEAR, _BREAK = 3.0 / 200.0, 1000.0
"""Slaney's scale: so many mel for each Hz, up to this frequency; logarithmic above."""
_STEP = 27.0 / np.log(6.4)


def log_mel(mel: LogMel, samples: np.ndarray) -> np.ndarray:
    """float32 [chunks, bins, frames] of float32 samples at the model's rate. Raises BadLength."""
    chunks, frames = mel.chunks(len(samples)), mel.windows(len(samples))
    if mel.exact:
        # Of the silence that would follow, windows of sound and silence read no more than this.
        return _scaled(mel, np.pad(samples, (0, 2 * mel.n_fft)))[None, :, :frames]
    whole = np.zeros(chunks * mel.chunk_samples, np.float32)
    whole[: len(samples)] = samples
    apart = _scaled(mel, whole).reshape(mel.bins, chunks, mel.chunk_frames).transpose(1, 0, 2)
    return np.ascontiguousarray(apart[:, :, :frames])


def whole_log_mel(mel: LogMel, samples: np.ndarray) -> np.ndarray:
    """float32 [1, bins, frames] of all samples, however many; of fewer than a chunk's, as if
    silence followed."""
    if len(samples) < mel.chunk_samples:
        samples = np.pad(samples, (0, mel.chunk_samples - len(samples)))
    return _scaled(mel, samples)[None]


def block_log_mel(mel: BlockMel, samples: np.ndarray) -> np.ndarray:
    """float32 [1, bins, frames] of all samples, however many."""
    if len(samples) < mel.least:
        samples = np.pad(samples, (0, mel.least - len(samples)))
    return _scaled(mel, samples)[None]


AnyMel = LogMel | BlockMel


def _scaled(mel: AnyMel, whole: np.ndarray) -> np.ndarray:
    """float32 [bins, windows]: the logarithms, as far as they are not far below the loudest."""
    logs = _logs(mel, whole)
    logs = np.maximum(logs, logs.max() - RANGE)
    return np.asarray((logs + 4.0) / 4.0)


def silence(spectrogram: np.ndarray) -> float:
    """Returns the value of a spectrogram where the sound is silent."""
    return float(spectrogram.max()) - RANGE / 4.0


def _logs(mel: AnyMel, whole: np.ndarray) -> np.ndarray:
    """float32 [bins, windows]: logarithms to base ten of the power in each band. A window's middle
    lies at a multiple of the hop; before the beginning and after the end the sound is mirrored."""
    count = len(whole) // mel.hop
    padded = np.pad(whole, mel.n_fft // 2, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, mel.n_fft)[:: mel.hop]
    shape, bands = np.hanning(mel.n_fft + 1)[:-1], _bands(mel)
    out = np.empty((mel.bins, count), np.float32)
    for begin in range(0, count, _BLOCK):
        part = windows[begin : min(begin + _BLOCK, count)].astype(np.float64) * shape
        spectrum = np.fft.rfft(part).astype(np.complex64)
        power = np.abs(spectrum, dtype=np.float64) ** 2.0
        banded = np.maximum(FLOOR, bands.T @ power.T)
        out[:, begin : begin + len(part)] = np.log10(banded)
    return out


@functools.lru_cache(4)
def _bands(mel: AnyMel) -> np.ndarray:
    """float64 [frequencies, bins]: triangles of equal width on the mel scale, each of area 1 in
    Hz."""
    frequencies = np.linspace(0.0, mel.sampling_rate // 2, 1 + mel.n_fft // 2)
    corners = _hertz(np.linspace(0.0, _mel(HIGHEST), mel.bins + 2))
    widths = np.diff(corners)
    distance = corners[None, :] - frequencies[:, None]
    rising, falling = -distance[:, :-2] / widths[:-1], distance[:, 2:] / widths[1:]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return triangles * (2.0 / (corners[2:] - corners[:-2]))


def _mel(hertz: float) -> float:
    """Place on the mel scale of a frequency above the break, in Hz."""
    return float(_BREAK * _LINEAR + np.log(hertz / _BREAK) * _STEP)


def _hertz(mels: np.ndarray) -> np.ndarray:
    bend = _BREAK * _LINEAR
    above = _BREAK * np.exp((np.log(6.4) / 27.0) * (mels - bend))
    return np.where(mels >= bend, above, 200.0 * mels / 3.0)
