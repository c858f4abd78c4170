"""MiniCPM-V's pictures and videos: slices of about as many pixels as a square has.

The rules are those of transformers' image processor, down to how they round. Sizes are (height,
width), pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from penstock.forms.form import ItemRun, PartedForm, Runs
from penstock.forms.geometry import Size, check_ratio, to_multiple
from penstock.forms.pixels import Pixels
from penstock.forms.video import VideoForm, VideoShape

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from penstock.forms.arrays import Arrays


class SlicedImages(PartedForm, frozen=True, kw_only=True, tag_field="kind", tag="minicpmv"):
    """MiniCPM-V's: the whole of a picture, with about as many pixels as a square, followed, if the
    picture is larger, by slices of it on a grid whose form is the nearest to its own; each has
    about as many pixels, too.

    patch: side, pixels.  merge: patches, each way, that become one embedding.  whole: patches, each
    way, of which sides are multiples.  scale: side of the square, pixels.  most: slices.  split:
    whether there are slices.
    """

    merge: int = 4
    whole: int = 4
    scale: int = 448
    most: int = 9
    split: bool = True
    queries: int = 0
    """Embeddings of the whole, and of a slice, whatever their size (MiniCPM-V up to 4.5); 0: as
    many as merged squares of patches."""
    begin: str = "<image>"
    end: str = "</image>"
    """Around the embeddings of the whole."""
    slice_begin: str = "<slice>"
    slice_end: str = "</slice>"
    """Around those of a slice. Each row of slices but the first one begins on a new line."""

    CHANGES: ClassVar[Mapping[str, str]] = {"slice_mode": "split", "max_slice_nums": "most"}

    @property
    def square(self) -> int:
        """Pixels of which sides are multiples."""
        return self.patch * self.whole

    def grid(self, size: Size) -> tuple[int, int]:
        """(rows, columns) of slices; (0, 0): the whole alone. Raises BadShape."""
        check_ratio(size)
        if not self.split:
            return 0, 0
        height, width = size
        count = min(math.ceil(width * height / (self.scale * self.scale)), self.most)
        return _form(math.log(width / height), count, self.most) if count > 1 else (0, 0)

    def whole_size(self, size: Size) -> Size:
        """The whole's. A picture without slices is enlarged, too. Raises BadShape."""
        return self._near_square(*size, enlarged=self.grid(size) == (0, 0))

    def slice_size(self, size: Size) -> Size:
        """The size of each slice of a picture that has some."""
        # The picture is rounded to whole pixels of a slice first.
        height, width = (
            max(round(side / count) * count, count) / count
            for side, count in zip(size, self.grid(size), strict=True)
        )
        return self._near_square(height, width, enlarged=True)

    def _rows(self, size: Size) -> int:
        if self.queries:
            return self.queries
        patches = size[0] // self.patch * (size[1] // self.patch)
        return patches // self.merge**2

    def _near_square(self, height: float, width: float, *, enlarged: bool) -> Size:
        """Sides that are multiples of the patches that make up one embedding, near the proportions,
        with about as many pixels as the square. enlarged: whether what has fewer is, too."""
        if enlarged or height * width > self.scale * self.scale:
            ratio = width / height
            height = int(self.scale / math.sqrt(ratio))
            width = int(height * ratio)
        return to_multiple(height, self.square, self.square), to_multiple(
            width, self.square, self.square
        )

    def runs(self, size: Size) -> Runs:
        runs, end = [ItemRun(self.begin, self._rows(self.whole_size(size)))], self.end
        rows, columns = self.grid(size)
        each = self._rows(self.slice_size(size)) if rows else 0
        for number in range(rows * columns):
            newline = "\n" if number and number % columns == 0 else ""
            runs.append(ItemRun(f"{end}{newline}{self.slice_begin}", each))
            end = self.slice_end
        return Runs(tuple(runs), end, (rows, columns))

    def prepare(self, picture: Image.Image) -> Arrays:
        """The patches of the whole, then of its slices, by rows."""
        from penstock.forms import arrays

        size = arrays.size_of(picture)
        parts = [arrays.resized(picture, self.whole_size(size), self.pixels)]
        rows, columns = self.grid(size)
        if rows:
            high, wide = self.slice_size(size)
            canvas = arrays.resized(picture, (rows * high, columns * wide), self.pixels)
            parts += [*arrays.cut(canvas, high, wide)]
        return arrays.in_patches(parts, self.patch)

    def wrong(self) -> str | None:
        return self._most_is_wrong(self.most)


def _form(form: float, count: int, most: int) -> tuple[int, int]:
    """Rows and columns of about `count` slices, nearest to the logarithm of a picture's width by
    its height."""
    best, nearest = (1, 1), math.inf
    for parts in (count - 1, count, count + 1):
        if parts == 1 or parts > most:
            continue
        for columns in range(1, parts + 1):
            if parts % columns:
                continue
            rows = parts // columns
            away = abs(form - math.log(columns / rows))
            if away < nearest:
                best, nearest = (rows, columns), away
    return best


class SlicedFrames(VideoForm, frozen=True, kw_only=True, tag_field="kind", tag="sliced_frames"):
    """MiniCPM-V's videos: each frame is a picture with slices, as `image` says."""

    image: SlicedImages

    ALIKE: ClassVar[bool] = True

    @property
    def pixels(self) -> Pixels:
        return self.image.pixels

    def frame_size(self, size: Size, shown: int) -> Size:
        return self.image.whole_size(size)

    def frame_pixels(self, size: Size, shown: int) -> int:
        whole, (rows, columns) = self.image.whole_size(size), self.image.grid(size)
        each = self.image.slice_size(size) if rows else (0, 0)
        return math.prod(whole) + rows * columns * math.prod(each)

    def runs(self, shape: VideoShape) -> Runs:
        each = self.image.runs((shape.height, shape.width))
        first, *others = each.runs
        joined = ItemRun(each.behind + first.text, first.rows)
        runs = (first, *others, *(joined, *others) * (shape.shown - 1))
        return Runs(runs, each.behind)

    def prepare(self, frames: Iterator[Image.Image], size: Size, count: int) -> Arrays:
        """The patches of each frame's whole, then of its slices; and the rows and columns of them
        that each has."""
        from penstock.forms.arrays import FRAMES, PIXELS, SHAPES, joined

        made = [self.image.prepare(frame) for frame in frames]
        return {FRAMES: joined(made, PIXELS), SHAPES: joined(made, SHAPES)}

    def inputs(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """What a picture's `inputs` gives, of all parts of all frames."""
        from penstock.forms.arrays import SHAPES, frames_in, of_parts

        return of_parts(frames_in(arrays), arrays.get(SHAPES), self.pixels, self.image.patch)
