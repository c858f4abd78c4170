"""Pictures and frames of one size for all: CLIP's and SigLIP's preparation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.forms.form import ImageForm, Runs
from penstock.forms.geometry import Size, check_ratio
from penstock.forms.pixels import Pixels
from penstock.forms.video import GroupTexts, VideoForm, VideoShape, in_groups

if TYPE_CHECKING:
    from PIL import Image

    from penstock.forms.arrays import Arrays


class FixedImages(ImageForm, frozen=True, kw_only=True, tag_field="kind", tag="fixed"):
    """One size for all: CLIP's and SigLIP's preparation, which LLaVA 1.5 and Gemma 3 have.

    shortest_edge: pictures are resized, in proportion, to it; 0: to height × width.
    height, width: of what the tower gets; where it differs from the resized picture, its middle is
    cut out, or it is surrounded by zeros.  rows: embeddings of a picture.
    """

    height: int
    width: int
    rows: int
    shortest_edge: int = 0
    resized: tuple[int, int] = (0, 0)
    """Height and width that a picture is resized to before its middle is cut out, without
    shortest_edge; zeros: to height and width."""
    squared: bool = False
    """Whether a picture is made square first, with bars in the colour of the mean."""
    fitted: int = 0
    """Pixels that a side has at least, of a picture that is resized, in proportion, to fill a
    square one way, with bars in the colour of the mean the other (DeepSeek-VL, Janus); 0: it
    isn't."""
    fitted_down: bool = False
    """Whether the sides of such a picture are rounded down (Janus's makers), and not to the
    nearest."""

    def runs(self, size: Size) -> Runs:
        return Runs.of(self.rows)

    def prepare(self, picture: Image.Image) -> Arrays:
        from penstock.forms import arrays

        if self.fitted:
            down = self.fitted_down
            inner = arrays.within_square(picture, self.height, self.fitted, self.pixels, down=down)
            return arrays.of_square(arrays.square(inner, arrays.background(self.pixels)))
        if self.squared:
            picture = arrays.square(picture, arrays.background(self.pixels))
        size = self.resized if all(self.resized) else (self.height, self.width)
        if self.shortest_edge:
            size = by_shortest_edge(arrays.size_of(picture), self.shortest_edge)
        shown = arrays.resized(picture, size, self.pixels)
        return {arrays.PIXELS: arrays.middle(shown, (self.height, self.width))[None]}


def by_shortest_edge(size: Size, edge: int) -> Size:
    """Returns the size in proportion whose shorter side has `edge` pixels; the longer is rounded
    down. Raises BadShape for a picture that is too long."""
    check_ratio(size)
    height, width = size
    long = int(edge * max(size) / min(size))
    return (long, edge) if width <= height else (edge, long)


class FixedFrames(VideoForm, frozen=True, kw_only=True, tag_field="kind", tag="fixed_frames"):
    """LLaVA-OneVision's and InternVL's videos: frames of one size.

    height, width: of what the tower gets.  rows: embeddings of a frame; LLaVA-OneVision's has fewer
    than a picture.
    """

    pixels: Pixels
    height: int
    width: int
    rows: int
    texts: GroupTexts | None = None
    """None: nothing stands between the embeddings of two frames, and one embedding ends the
    video."""

    def frame_size(self, size: Size, shown: int) -> Size:
        return self.height, self.width

    def runs(self, shape: VideoShape) -> Runs:
        if self.texts is None:
            return Runs.of(shape.shown * self.rows + 1)
        return in_groups(self.texts, shape, self.rows)
