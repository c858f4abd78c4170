"""How a picture stands in a prompt: rows of embeddings, and the text around them."""

from __future__ import annotations

from typing import NamedTuple

from penstock.media.geometry import (
    Size,
    by_longest_edge,
    tiles,
    whole_patches,
    whole_tiles,
)
from penstock.media_facts import FixedImages, ImagePreparation, MediaFacts, PatchImages


class PictureRun(NamedTuple):
    """Text, then so many embeddings."""

    text: str
    rows: int


class PictureLayout(NamedTuple):
    """runs: one after the other, then `behind`.  grid: what positions depend on: (1, height, width)
    in embeddings of a picture that is cut into merged patches; (rows, columns) of tiles, (0, 0) if
    it isn't cut; nothing where all pictures are alike."""

    runs: tuple[PictureRun, ...]
    behind: str
    grid: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Embeddings in all."""
        return sum(run.rows for run in self.runs)


def layout(facts: MediaFacts, size: Size) -> PictureLayout:
    """Of a picture of (height, width) pixels, upright. Raises BadShape."""
    image = facts.image
    if isinstance(image, FixedImages):
        return PictureLayout((PictureRun(facts.before, image.rows),), facts.behind, ())
    if isinstance(image, PatchImages):
        grid = patch_grid(image, size)
        return PictureLayout(
            (PictureRun(facts.before, grid[0] * grid[1]),), facts.behind, (1, *grid)
        )
    height, width = tile_grid(image, size)
    runs = [
        PictureRun(f"{newline}{image.around}<row_{row + 1}_col_{column + 1}>", image.rows)
        for row in range(height)
        for column, newline in _columns(width, first_row=not row)
    ]
    newlines = "\n\n" if runs else ""
    runs.append(PictureRun(f"{newlines}{image.around}{image.whole}", image.rows))
    return PictureLayout(tuple(runs), image.around, (height, width))


def _columns(width: int, *, first_row: bool) -> list[tuple[int, str]]:
    """A new row begins on a new line."""
    return [(column, "" if column or first_row else "\n") for column in range(width)]


def patch_grid(image: PatchImages, size: Size) -> tuple[int, int]:
    """(height, width) in merged patches. Raises BadShape."""
    factor = image.patch * image.merge
    height, width = whole_patches(size, factor, image.min_pixels, image.max_pixels)
    return height // factor, width // factor


def tile_grid(image: ImagePreparation, size: Size) -> tuple[int, int]:
    """(rows, columns) of tiles of a tiled preparation; (0, 0): the whole alone."""
    if isinstance(image, (FixedImages, PatchImages)) or not image.split:
        return 0, 0
    resized = whole_tiles(by_longest_edge(size, image.longest_edge), image.tile)
    return tiles(resized, image.tile)
