"""Step 3.7's windows: how a picture is cut into squares, and what stands around their embeddings.
Pure arithmetic.

The rules are those of transformers' image processor, down to how they round. Sizes are (height,
width), pixels.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.media.geometry import Size, check_ratio
from penstock.model.image_facts import WindowedImages

NARROW, LONG = 32, 4
"""A side of fewer pixels, and a picture more than so many times as long as wide: one of both is
made square first."""
OBLONG = 1.5
"""A picture no larger than the whole has windows from this ratio of its sides on."""
LEFT_OVER = 0.2
"""Share of a window from which on what is left of a side becomes one, too."""


class WindowPlan(NamedTuple):
    """size: of the picture when it is made smaller.  cut: to which it is resized before it is cut.
    side: of a window, 0: there are none.  squared: whether black is added first, at the right or
    below."""

    size: Size
    cut: Size
    side: int
    squared: bool

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of windows; (0, 0): the whole alone."""
        if not self.side:
            return 0, 0
        rows, columns = (max(length // self.side, 1) for length in self.cut)
        return rows, columns


def windows(image: WindowedImages, size: Size) -> WindowPlan:
    """Raises BadShape for a picture that is too long."""
    check_ratio(size)
    squared = min(size) < NARROW and max(size) > LONG * min(size)
    if squared:
        size = max(size), max(size)
    if max(size) > image.longest:
        scale = image.longest / max(size)
        size = max(int(size[0] * scale), 1), max(int(size[1] * scale), 1)
    side = _side(image, size)
    height, width = (_whole(length, side) for length in size)
    return WindowPlan(size, (height, width), side, squared)


def _side(image: WindowedImages, size: Size) -> int:
    short, long = min(size), max(size)
    if long <= image.whole:
        return short if long / short > OBLONG else 0
    return min(short, image.tile) if long / short > LONG else image.tile


def _whole(length: int, side: int) -> int:
    """The multiple of a window's side that a length is resized to; a shorter one stays."""
    if not side or length < side:
        return length
    return side * (length // side + (length % side > LEFT_OVER * side))


def runs(image: WindowedImages, size: Size) -> tuple[list[tuple[str, int]], str]:
    """Text before each run of embeddings, and how many these are; and the text behind the last.
    Raises BadShape."""
    found, end = [], ""
    rows, columns = windows(image, size).grid
    for number in range(rows * columns):
        newline = image.row_end if number and number % columns == 0 else ""
        found.append((f"{end}{newline}{image.tile_begin}", image.tile_rows))
        end = image.tile_end
    found.append((f"{end}{image.begin}", image.whole_rows))
    return found, image.end
