"""What a model reads of a sound: the spectrogram that its preparation names, or the samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.media.log_mel import block_log_mel, log_mel, whole_log_mel
from penstock.media.magnitudes import emphasised_mel, hamming_mel, magnitude_mel, paired_mel
from penstock.model.sound_facts import (
    BlockMel,
    EmphasisedMel,
    FrameMel,
    HammingMel,
    LogMel,
    PairedMel,
    SoundForm,
    Waveform,
)


def sample_frames(waveform: Waveform, samples: np.ndarray) -> np.ndarray:
    """float32 [1, frame, frames] of float32 samples at the model's rate: a frame stands where a
    spectrogram has a window. Raises BadLength.

    Source: transformers' Gemma4UnifiedAudioFeatureExtractor, which has the same numbers.
    """
    count = waveform.embeddings(len(samples))
    frames = np.zeros(count * waveform.frame, np.float32)
    frames[: len(samples)] = samples
    return np.ascontiguousarray(frames.reshape(count, waveform.frame).T[None])


READ: dict[type[SoundForm], Callable[[Any, np.ndarray], np.ndarray]] = {
    LogMel: log_mel,
    BlockMel: block_log_mel,
    FrameMel: magnitude_mel,
    EmphasisedMel: emphasised_mel,
    PairedMel: paired_mel,
    HammingMel: hamming_mel,
    Waveform: sample_frames,
}
"""What reads a sound of each form."""


def spectrogram(kind: SoundForm, samples: np.ndarray, *, whole: bool = False) -> np.ndarray:
    """float32 [1, bins, windows] of float32 samples at the model's rate.

    whole: all windows, not those of one stretch; only for a LogMel. Raises BadLength.
    """
    if whole and isinstance(kind, LogMel):
        return whole_log_mel(kind, samples)
    return READ[type(kind)](kind, samples)
