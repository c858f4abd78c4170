"""Pictures as files, and how a tiny model takes them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

from penstock.forms.fixed import FixedImages
from penstock.forms.pixels import Pixels

PREPARATION = FixedImages(
    pixels=Pixels(resample=3, rescale=1 / 255, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
    height=28,
    width=28,
    shortest_edge=28,
    rows=4,
)


def picture(width: int = 40, height: int = 30, seed: int = 0) -> Image.Image:
    """Noise in RGB."""
    noise = np.random.default_rng(seed)
    return Image.fromarray(noise.integers(0, 256, (height, width, 3), np.uint8))


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The bytes of a file."""
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()
