"""How a picture's bytes become numbers."""

from __future__ import annotations

import msgspec

Colour = tuple[float, float, float]


class Pixels(msgspec.Struct, frozen=True, kw_only=True):
    """How bytes become numbers: value * rescale, then (value - mean) / std, of red, green, blue."""

    resample: int
    """Pillow's number of a filter: 0 nearest, 1 Lanczos, 2 bilinear, 3 bicubic, 4 box."""
    rescale: float | None = None
    mean: Colour | None = None
    std: Colour | None = None
    """Divisor after `mean` is subtracted. None for mean and std: values stay as they are."""
    rounded: bool = False
    """Whether each step's result is rounded to bfloat16 (Llama 4)."""
