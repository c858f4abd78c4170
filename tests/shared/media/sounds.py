"""Made-up sounds, as samples and as files."""

from __future__ import annotations

import io

import numpy as np
import soundfile

RATE = 16_000


def sound(seconds: float = 0.5, rate: int = RATE, seed: int = 0, channels: int = 1) -> np.ndarray:
    """Two tones and a little noise: float32 [samples], or [samples, channels]."""
    random_ = np.random.default_rng(seed)
    time = np.arange(int(seconds * rate)) / rate
    tones = [np.sin(2 * np.pi * tone * time) for tone in random_.uniform(100, 3000, (2, 1))]
    made = 0.3 * sum(tones)[:, None] + random_.normal(0, 0.02, (len(time), channels))
    made = made.astype(np.float32)
    return made[:, 0] if channels == 1 else made


def saved_sound(
    samples: np.ndarray, kind: str = "WAV", rate: int = RATE, subtype: str | None = None
) -> bytes:
    """kind: of libsndfile's."""
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()
