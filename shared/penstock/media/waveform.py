"""A sound's samples as they are, as Gemma 4 12B reads them.

Source: transformers' Gemma4UnifiedAudioFeatureExtractor, which has the same numbers.
"""

from __future__ import annotations

import numpy as np

from penstock.media.sound_layout import check_shortest
from penstock.model.sound_facts import Waveform


def sample_frames(waveform: Waveform, samples: np.ndarray) -> np.ndarray:
    """float32 [1, frame, frames] of float32 samples at the model's rate: a frame stands where a
    spectrogram has a window. Raises BadLength."""
    check_shortest(waveform, len(samples))
    count = waveform.rows(len(samples))
    whole = np.zeros(count * waveform.frame, np.float32)
    whole[: len(samples)] = samples
    return np.ascontiguousarray(whole.reshape(count, waveform.frame).T[None])
