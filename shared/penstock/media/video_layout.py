"""How a video stands in a prompt: sizes of its frames, its grid, and its positions in time."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from penstock.media.geometry import BadShape, Size, whole_patches
from penstock.media_facts import VideoFrames

MAX_TERM = 1_000_000
"""Of a fraction's numerator and denominator, as far as a rate goes."""


class VideoShape(NamedTuple):
    """What a video's rows and positions depend on.

    height, width: of its upright frames, pixels.  total: frames that it has.  rate: frames per
    second.  shown: frames that are shown, of these.
    """

    height: int
    width: int
    total: int
    rate: Fraction
    shown: int

    def flat(self) -> tuple[int, ...]:
        """As Answer.shape has it."""
        rate = self.rate.limit_denominator(MAX_TERM)
        return self.height, self.width, self.total, rate.numerator, rate.denominator, self.shown

    @staticmethod
    def of(shape: tuple[int, ...]) -> VideoShape:
        height, width, total, above, below, shown = shape
        return VideoShape(height, width, total, Fraction(above, below), shown)


def frame_size(video: VideoFrames, size: Size, shown: int) -> Size:
    """Of a resized frame, pixels. shown: frames. Raises BadShape."""
    most = video.max_pixels
    if video.all_pixels:
        most = max(min(most, video.all_pixels // shown), int(video.min_pixels * 1.05))
    return whole_patches(size, video.patch * video.merge, video.min_pixels, most)


def groups_of(video: VideoFrames, shown: int) -> int:
    """The last frame is repeated where they don't fill the last group."""
    return -(-shown // video.group)


def video_grid(video: VideoFrames, shape: VideoShape) -> tuple[int, ...]:
    """MediaItem.grid: groups, rows and columns of merged patches; then, where time has a scale, the
    numerator and the denominator of what lies between the positions of two groups. Raises
    BadShape."""
    height, width = frame_size(video, (shape.height, shape.width), shape.shown)
    side = video.patch * video.merge
    grid = groups_of(video, shape.shown), height // side, width // side
    if not video.positions_per_second:
        return grid
    plane = grid[1] * grid[2]
    step = (
        Fraction(video.positions_per_second)
        * video.group
        * Fraction(shape.total, shape.shown)
        / shape.rate
    ).limit_denominator(MAX_TERM)
    if step > plane:
        seconds = float(step) / video.positions_per_second
        raise BadShape(
            f"its frames lie {seconds:.0f} s apart, and one of them has {plane} tokens; the model "
            f"tells times apart up to {plane / video.positions_per_second:.0f} s; show more frames "
            "(num_frames) or larger ones (min_pixels)"
        )
    return *grid, step.numerator, step.denominator
