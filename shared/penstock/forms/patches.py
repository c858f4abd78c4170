"""Pictures and videos of any size, in whole merged patches: Qwen2-VL's and its successors', GLM's,
PaddleOCR-VL's and Kimi's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING, ClassVar

from penstock.forms.form import ImageForm, Runs
from penstock.forms.geometry import BadShape, Size, whole_patches, whole_volume
from penstock.forms.pixels import Pixels
from penstock.forms.video import MAX_TERM, GroupTexts, VideoForm, VideoShape, in_groups

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from penstock.forms.arrays import Arrays


_BOUNDS = {"min_pixels": "min_pixels", "max_pixels": "max_pixels"}
MAX_PIXELS = 1 << 28
"""Most pixels that a picture, or a frame, may be resized to."""


class PatchImages(ImageForm, frozen=True, kw_only=True, tag_field="kind", tag="qwen2_vl"):
    """Qwen2-VL's and its successors': any size, rounded to whole merged patches.

    min_pixels, max_pixels: that a resized picture has.  patch: side, pixels.  merge: patches, each
    way, that become one embedding.  frames: of which a patch consists; a picture is repeated.
    """

    min_pixels: int
    max_pixels: int
    patch: int
    merge: int
    frames: int = 2
    widened: bool = False
    """Whether a picture with a side of less than a merged patch is enlarged first until it has one
    (PaddleOCR-VL)."""
    of_all: bool = False
    """Whether the bounds are of the repeated pictures together, and a picture with a short side is
    enlarged first (GLM-4.1V)."""
    most_side: int = 0
    """Patches that a side has at most, of pictures that keep their proportions and are never
    enlarged: what is missing at the right and below of whole merged patches is black (Kimi K2.5).
    0: sides are rounded."""

    CHANGES: ClassVar[Mapping[str, str]] = _BOUNDS

    def grid(self, size: Size) -> tuple[int, int]:
        """(height, width) in merged patches. Raises BadShape."""
        factor = self.patch * self.merge
        if self.most_side:
            height, width = self._inner_size(size)
            return -(-height // factor), -(-width // factor)
        size = _widened(size, factor) if self.widened else size
        least, most = self.min_pixels, self.max_pixels
        if self.of_all:
            height, width = whole_volume(size, self.frames, factor, self.frames, least, most)
        else:
            height, width = whole_patches(size, factor, least, most)
        return height // factor, width // factor

    def _inner_size(self, size: Size) -> Size:
        """(height, width), in pixels, of a picture of most_side before it is filled up."""
        return _never_larger(size, self.patch, self.max_pixels // self.patch**2, self.most_side)

    def runs(self, size: Size) -> Runs:
        rows, columns = self.grid(size)
        return Runs.of(rows * columns, (1, rows, columns))

    def prepare(self, picture: Image.Image) -> Arrays:
        from penstock.forms import arrays

        size, factor = arrays.size_of(picture), self.patch * self.merge
        height, width = self.grid(size)
        whole = height * factor, width * factor
        inner = self._inner_size(size) if self.most_side else whole
        shown = arrays.filled(arrays.resized(picture, inner, self.pixels), whole)
        return {arrays.PIXELS: shown[None]}

    def inputs(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """pixel_values float32 [patches, 3 * frames * patch * patch], with grid_thw int32 [3], (1,
        height, width) in patches."""
        from penstock.forms.arrays import patched, pixels_in

        pixels = pixels_in(arrays)
        if len(pixels) != 1:
            raise ValueError("a prepared picture is one tile here")
        return patched(pixels, self.pixels, (self.patch, self.merge, self.frames))

    def wrong(self) -> str | None:
        return _wrong_bounds(self)


class VideoFrames(VideoForm, frozen=True, kw_only=True, tag_field="kind", tag="frames"):
    """Qwen2-VL's and its successors' videos: frames of any size, rounded to whole merged patches,
    each of which spans `group` frames.

    min_pixels, max_pixels: of a resized frame.  patch: side, pixels.  merge: patches, each way,
    that become one embedding.
    """

    pixels: Pixels
    min_pixels: int
    max_pixels: int
    patch: int
    merge: int
    group: int = 2
    all_pixels: int = 0
    """Most pixels of all frames together, of which each has an even share, but no less than 1.05
    times min_pixels; 0: no such bound."""
    positions_per_second: float = 0.0
    """How far apart in time the positions of a second are; 0: those of groups follow one
    another."""
    of_all: bool = False
    """Whether min_pixels and max_pixels are of all frames together; all_pixels is of each then."""
    texts: GroupTexts | None = None
    """None: nothing stands between the embeddings of two groups."""

    CHANGES: ClassVar[Mapping[str, str]] = {**_BOUNDS, **VideoForm.CHANGES}

    def frame_size(self, size: Size, shown: int) -> Size:
        most, factor = self.max_pixels, self.patch * self.merge
        if self.of_all:
            if self.all_pixels:
                each = max(min(self.all_pixels, most // shown), int(self.min_pixels * 1.05))
                most = each * shown
            return whole_volume(size, shown, factor, self.group, self.min_pixels, most)
        if self.all_pixels:
            most = max(min(most, self.all_pixels // shown), int(self.min_pixels * 1.05))
        return whole_patches(size, factor, self.min_pixels, most)

    def grid(self, shape: VideoShape) -> tuple[int, ...]:
        """Groups, rows and columns of merged patches; then, where time has a scale, the numerator
        and the denominator of what lies between the positions of two groups."""
        height, width = self.frame_size((shape.height, shape.width), shape.shown)
        side = self.patch * self.merge
        # The last frame is repeated where they don't fill the last group.
        grid = -(-shape.shown // self.group), height // side, width // side
        if not self.positions_per_second:
            return grid
        plane = grid[1] * grid[2]
        step = (
            Fraction(self.positions_per_second)
            * self.group
            * Fraction(shape.total, shape.shown)
            / shape.rate
        ).limit_denominator(MAX_TERM)
        if step > plane:
            seconds = float(step) / self.positions_per_second
            raise BadShape(
                f"its frames lie {seconds:.0f} s apart, and one of them has {plane} tokens; the "
                f"model tells times apart up to {plane / self.positions_per_second:.0f} s; show "
                "more frames (num_frames) or larger ones (min_pixels)"
            )
        return *grid, step.numerator, step.denominator

    def runs(self, shape: VideoShape) -> Runs:
        grid = self.grid(shape)
        if self.texts is None:
            return Runs.of(prod(grid[:3]), grid)
        return in_groups(self.texts, shape, grid[1] * grid[2], self.group)._replace(grid=grid)

    def inputs(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """pixel_values float32 [patches, 3 * group * patch * patch], and grid_thw int32 [3],
        (groups, height, width) in patches."""
        from penstock.forms.arrays import frames_in, patched

        return patched(frames_in(arrays), self.pixels, (self.patch, self.merge, self.group))

    def wrong(self) -> str | None:
        return _wrong_bounds(self)


def _wrong_bounds(form: PatchImages | VideoFrames) -> str | None:
    least = (form.patch * form.merge) ** 2
    if least <= form.min_pixels <= form.max_pixels <= MAX_PIXELS:
        return None
    return f"min_pixels and max_pixels must be ascending, from {least} to {MAX_PIXELS}"


def _never_larger(size: Size, patch: int, most: int, most_side: int) -> Size:
    """The picture's size when it is made smaller, in proportion, until it has about `most` patches
    in all and `most_side` in a row or column: Kimi K2.5's rule."""
    height, width = size
    patches = max(1, height // patch) * max(1, width // patch)
    longest = most_side * patch
    scale = min(1.0, math.sqrt(most / patches), longest / height, longest / width)
    high, wide = (min(max(1, int(side * scale)), longest) for side in size)
    return high, wide


def _widened(size: Size, least: int) -> Size:
    """The picture's size when it is enlarged, about in proportion, until no side is shorter than
    `least`."""
    height, width = size
    if height < least:
        height, width = least, round(width * least / height)
    if width < least:
        height, width = round(height * least / width), least
    return height, width
