"""Gemma 4's pictures and videos: the largest size of whole squares of patches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from penstock.forms.form import ImageForm, Runs
from penstock.forms.geometry import Size
from penstock.forms.pixels import Pixels
from penstock.forms.video import GroupTexts, VideoForm, VideoShape, in_groups

if TYPE_CHECKING:
    from PIL import Image

    from penstock.forms.arrays import Arrays


SOFT_TOKENS = (70, 140, 280, 560, 1120)
"""Most embeddings of a picture that Gemma 4 knows."""


class PooledImages(ImageForm, frozen=True, kw_only=True, tag_field="kind", tag="gemma4"):
    """Gemma 4's: the largest size of whole squares of patches, about in the picture's proportions,
    with at most so many squares.

    patch: side, pixels.  merge: patches, each way, that become one embedding.  most: embeddings of
    a picture.
    """

    patch: int
    merge: int
    most: int

    CHANGES: ClassVar[Mapping[str, str]] = {"max_soft_tokens": "most"}

    @property
    def square(self) -> int:
        """Pixels in a row of a square of patches."""
        return self.patch * self.merge

    def runs(self, size: Size) -> Runs:
        height, width = _whole_squares(size, self.square, self.most)
        return Runs.of(height // self.square * (width // self.square))

    def prepare(self, picture: Image.Image) -> Arrays:
        from penstock.forms import arrays

        size = _whole_squares(arrays.size_of(picture), self.square, self.most)
        return {arrays.PIXELS: arrays.resized(picture, size, self.pixels)[None]}

    def wrong(self) -> str | None:
        if self.most in SOFT_TOKENS:
            return None
        return f"max_soft_tokens must be one of {', '.join(map(str, SOFT_TOKENS))}"


class PooledFrames(VideoForm, frozen=True, kw_only=True, tag_field="kind", tag="pooled_frames"):
    """Gemma 4's videos: each frame is a picture, as PooledImages has it.

    patch: side, pixels.  merge: patches, each way, that become one embedding.  most: embeddings of
    a frame.
    """

    pixels: Pixels
    patch: int
    merge: int
    most: int
    texts: GroupTexts

    @property
    def square(self) -> int:
        """Pixels in a row of a square of patches."""
        return self.patch * self.merge

    def frame_size(self, size: Size, shown: int) -> Size:
        return _whole_squares(size, self.square, self.most)

    def runs(self, shape: VideoShape) -> Runs:
        height, width = self.frame_size((shape.height, shape.width), shape.shown)
        rows = height // self.square * (width // self.square)
        return in_groups(self.texts, shape, rows)


def _whole_squares(size: Size, side: int, most: int) -> Size:
    """The largest sides that are multiples of `side`, about in the picture's proportions, with at
    most `most` squares of that side: Gemma 4's rule. A picture that is too long for its shorter
    side to have one has a row of them."""
    height, width = size
    factor = math.sqrt(most * side**2 / (height * width))
    high, wide = (math.floor(factor * each / side) * side for each in size)
    if not high:
        return side, min(width // height, most) * side
    if not wide:
        return min(height // width, most) * side, side
    return high, wide
