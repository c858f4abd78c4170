"""Molmo 2's pictures and videos: the whole of a picture as one square, and squares of it that
overlap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from penstock.forms.crops import CropForm
from penstock.forms.form import ItemRun, Runs
from penstock.forms.geometry import Size
from penstock.forms.pixels import Pixels
from penstock.forms.video import GroupTexts, VideoForm, VideoShape, in_groups

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from penstock.forms.arrays import Arrays


class OverlappingImages(CropForm, frozen=True, kw_only=True, tag_field="kind", tag="molmo2"):
    """Molmo 2's; fields as of CropForm."""

    CHANGES: ClassVar[Mapping[str, str]] = {"max_crops": "most"}
    COUNTS_WITH_ARRAYS: ClassVar[bool] = True

    def runs(self, size: Size) -> Runs:
        from penstock.forms import overlaps

        crops = overlaps.form(self, size)
        run = ItemRun("", overlaps.embeddings(self, crops))
        return Runs((run,), grid=crops, marked=overlaps.marked(self, crops))

    def prepare(self, picture: Image.Image) -> Arrays:
        """The whole, then its crops, by rows."""
        from penstock.forms import arrays, overlaps

        crops, given = overlaps.form(self, arrays.size_of(picture)), arrays.bytes_in(picture)
        whole = overlaps.resized(given, (self.side, self.side))
        shown = overlaps.resized(given, overlaps.cut_size(self, crops))
        made = arrays.stacked([whole, *overlaps.cut(self, shown, crops)])
        return made | {arrays.GRID: arrays.two(crops)}

    def inputs(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """What ImageForm gives, with pooled int32 [rows, patches] and marks int32 [rows], see
        `overlaps.pooled`."""
        from penstock.forms import overlaps
        from penstock.forms.arrays import GRID, pair, pixels_in

        pixels, needed = pixels_in(arrays), "a prepared picture in crops has a grid of two int32"
        rows, columns = (int(count) for count in pair(arrays.get(GRID), needed))
        if min(rows, columns) < 1:
            raise ValueError(needed)
        if max(rows, columns) > self.most or rows * columns > self.most:
            raise ValueError(f"a prepared picture has up to {self.most} crops")
        if pixels.shape[:3] != (1 + rows * columns, self.side, self.side):
            raise ValueError(f"a prepared picture in crops has squares of {self.side}")
        pooled, marks = overlaps.pooled(self, (rows, columns))
        return super().inputs(arrays) | {"pooled": pooled, "marks": marks}

    def wrong(self) -> str | None:
        return self._most_is_wrong(self.most)


class MarkedFrames(VideoForm, frozen=True, kw_only=True, tag_field="kind", tag="marked_frames"):
    """Molmo 2's videos: each frame is one square without proportions, whose embeddings stand
    between `begin` and `end` of `image`, which says the rest, too, but how many crops there are."""

    image: OverlappingImages
    texts: GroupTexts

    COUNTS_WITH_ARRAYS: ClassVar[bool] = True

    @property
    def pixels(self) -> Pixels:
        return self.image.pixels

    def frame_size(self, size: Size, shown: int) -> Size:
        return self.image.side, self.image.side

    def runs(self, shape: VideoShape) -> Runs:
        from penstock.forms import overlaps

        runs = in_groups(self.texts, shape, overlaps.frame_embeddings(self.image))
        return runs._replace(marked=overlaps.marked_frames(self.image, shape.shown))

    def _resized(self, frame: Image.Image, size: Size) -> np.ndarray:
        from penstock.forms import arrays, overlaps

        return overlaps.resized(arrays.bytes_in(frame), size)

    def inputs(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """What VideoForm gives, with pooled and marks, see `overlaps.pooled_frames`."""
        from penstock.forms import overlaps
        from penstock.forms.arrays import frames_in

        frames, side = frames_in(arrays), self.image.side
        if frames.shape[1:3] != (side, side):
            raise ValueError(f"a prepared video's frames are squares of {side}")
        pooled, marks = overlaps.pooled_frames(self.image, len(frames))
        return super().inputs(arrays) | {"pooled": pooled, "marks": marks}
