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


def saved_track(
    samples: np.ndarray,
    kind: str,
    codec: str,
    rate: int,
    *,
    begins: float = 0.0,
    pictures: str | None = None,
) -> bytes:
    """A container of FFmpeg's with a sound of one channel or two. begins: second at which it does.
    pictures: codec of a second of video beside it."""
    import av

    out = io.BytesIO()
    layout = "mono" if samples.ndim == 1 else "stereo"
    with av.open(out, "w", format=kind) as file:
        video = None if pictures is None else file.add_stream(pictures, rate=10)
        track = file.add_stream(codec, rate=rate, layout=layout)
        if video is not None:
            video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
            for number in range(10):
                rows = np.full((48, 64, 3), 20 * number, np.uint8)
                file.mux(video.encode(av.VideoFrame.from_ndarray(rows, format="rgb24")))
            file.mux(video.encode())
        rows = np.atleast_2d(samples.T)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(rows), format="fltp", layout=layout)
        frame.sample_rate, frame.pts = rate, round(begins * rate)
        file.mux(track.encode(frame))
        file.mux(track.encode())
    return out.getvalue()
