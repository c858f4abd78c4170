"""What a model reads of a sound: the spectrogram that its preparation names, or the samples."""

from __future__ import annotations

import numpy as np

from penstock.media.log_mel import block_log_mel, log_mel, whole_log_mel
from penstock.media.magnitudes import emphasised_mel, hamming_mel, magnitude_mel, paired_mel
from penstock.media.sound_layout import check_shortest
from penstock.model.sound_facts import (
    BlockMel,
    EmphasisedMel,
    FrameMel,
    HammingMel,
    PairedMel,
    SoundPreparation,
    Waveform,
)


def spectrogram(kind: SoundPreparation, samples: np.ndarray, *, whole: bool = False) -> np.ndarray:
    """float32 [1, bins, windows] of float32 samples at the model's rate.

    whole: all windows, not those of one stretch (LogMel). Raises BadLength.
    """
    if isinstance(kind, BlockMel):
        return block_log_mel(kind, samples)
    if isinstance(kind, FrameMel):
        return magnitude_mel(kind, samples)
    if isinstance(kind, EmphasisedMel):
        return emphasised_mel(kind, samples)
    if isinstance(kind, PairedMel):
        return paired_mel(kind, samples)
    if isinstance(kind, HammingMel):
        return hamming_mel(kind, samples)
    if isinstance(kind, Waveform):
        return sample_frames(kind, samples)
    return whole_log_mel(kind, samples) if whole else log_mel(kind, samples)


def sample_frames(waveform: Waveform, samples: np.ndarray) -> np.ndarray:
    """float32 [1, frame, frames] of float32 samples at the model's rate: a frame stands where a
    spectrogram has a window. Raises BadLength.

    Source: transformers' Gemma4UnifiedAudioFeatureExtractor, which has the same numbers.
    """
    check_shortest(waveform, len(samples))
    count = waveform.rows(len(samples))
    frames = np.zeros(count * waveform.frame, np.float32)
    frames[: len(samples)] = samples
    return np.ascontiguousarray(frames.reshape(count, waveform.frame).T[None])
