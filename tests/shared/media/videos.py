"""Videos as files, and how a tiny model takes them."""

from __future__ import annotations

import io
from functools import cache

import numpy as np

from penstock.forms.patches import VideoFrames
from penstock.forms.pixels import Pixels
from penstock.media.wire import ItemBounds

VIDEO = VideoFrames(
    pixels=Pixels(resample=3, rescale=1 / 255, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.25)),
    min_pixels=28 * 28,
    max_pixels=56 * 56,
    patch=7,
    merge=2,
)
BOUNDS = ItemBounds(pixels=1 << 20, seconds=60.0, frames=64, all_pixels=1 << 22)


def noise(count: int, height: int = 30, width: int = 44, seed: int = 0) -> np.ndarray:
    """uint8 [count, height, width, 3]."""
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), np.uint8)


@cache
def movie(
    codec: str = "libx264",
    kind: str = "mp4",
    count: int = 50,
    rate: int = 10,
    size: tuple[int, int] = (96, 64),
) -> bytes:
    """A file of frames that move, with a key frame every 12. size: width and height."""
    import av

    out, base = io.BytesIO(), noise(1, size[1], size[0])[0]
    with av.open(out, "w", format=kind) as file:
        stream = file.add_stream(codec, rate=rate)
        (stream.width, stream.height), stream.gop_size = size, 12
        stream.pix_fmt = {"mjpeg": "yuvj420p", "gif": "rgb8"}.get(codec, "yuv420p")
        for number in range(count):
            rows = np.roll(base, number * 2, axis=1)
            rows[:, :8] = number * 5 % 256
            file.mux(stream.encode(av.VideoFrame.from_ndarray(rows, format="rgb24")))
        file.mux(stream.encode())
    return out.getvalue()
