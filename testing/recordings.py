"""Recordings of nobody in particular, as samples and as files."""

from __future__ import annotations

import io
import wave

import numpy as np

RATE = 16_000
"""Samples a second."""


def tones(seconds: float, seed: int) -> np.ndarray:
    """float32 samples: tones that come and go, over a little noise."""
    rng = np.random.default_rng(seed)
    at = np.arange(round(seconds * RATE)) / RATE
    total = rng.normal(0, 0.01, len(at))
    for _ in range(6):
        pitch, beat, phase = rng.uniform(100, 4000), rng.uniform(0.3, 3), rng.uniform(0, 6)
        total += 0.2 * np.sin(2 * np.pi * pitch * at) * (np.sin(beat * at + phase) > 0.3)
    return np.asarray(np.clip(total, -1, 1), np.float32)


def wav(samples: np.ndarray) -> bytes:
    """A file of 16-bit samples."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return out.getvalue()
