"""How an item of media stands in a prompt: rows of embeddings, and the text around them."""

from __future__ import annotations

from typing import NamedTuple

from penstock.media.geometry import (
    Size,
    by_longest_edge,
    tiles,
    whole_patches,
    whole_tiles,
)
from penstock.media.sound_frames import sound_rows
from penstock.media_facts import (
    FixedImages,
    ImagePreparation,
    LogMel,
    MediaFacts,
    PatchImages,
    Preparation,
    TiledImages,
)
from penstock.protocol.common import MediaKind


class ItemRun(NamedTuple):
    """Text, then so many embeddings."""

    text: str
    rows: int


class ItemLayout(NamedTuple):
    """kind: of media.  runs: one after the other, then `behind`.  grid: what positions depend on:
    (1, height, width) in embeddings of a picture that is cut into merged patches; (rows, columns)
    of tiles, (0, 0) if it isn't cut; nothing where positions just count."""

    kind: MediaKind
    runs: tuple[ItemRun, ...]
    behind: str
    grid: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Embeddings in all."""
        return sum(run.rows for run in self.runs)


class _Runs(NamedTuple):
    """Of an item, without what all of its kind have around them."""

    runs: tuple[ItemRun, ...]
    behind: str = ""
    grid: tuple[int, ...] = ()


def layout(facts: MediaFacts, kind: MediaKind, shape: tuple[int, ...]) -> ItemLayout:
    """shape: of the item, as its process said: (height, width) in pixels of an upright picture,
    (samples,) of a sound. Raises BadShape or BadLength."""
    own = facts.kinds[kind]
    made = _runs(own.preparation, shape)
    runs = tuple(
        ItemRun(run.text if number else own.before + run.text, run.rows)
        for number, run in enumerate(made.runs)
    )
    return ItemLayout(kind, runs, made.behind + own.behind, made.grid)


def _runs(preparation: Preparation, shape: tuple[int, ...]) -> _Runs:
    match preparation:
        case LogMel():
            return _Runs((ItemRun("", sound_rows(preparation, *shape)),))
        case FixedImages():
            return _Runs((ItemRun("", preparation.rows),))
        case PatchImages():
            grid = patch_grid(preparation, _size(shape))
            return _Runs((ItemRun("", grid[0] * grid[1]),), grid=(1, *grid))
        case TiledImages():
            return _of_tiles(preparation, _size(shape))


def _size(shape: tuple[int, ...]) -> Size:
    height, width = shape
    return height, width


def _of_tiles(image: TiledImages, size: Size) -> _Runs:
    height, width = tile_grid(image, size)
    runs = [
        ItemRun(f"{newline}{image.around}<row_{row + 1}_col_{column + 1}>", image.rows)
        for row in range(height)
        for column, newline in _columns(width, first_row=not row)
    ]
    newlines = "\n\n" if runs else ""
    runs.append(ItemRun(f"{newlines}{image.around}{image.whole}", image.rows))
    return _Runs(tuple(runs), image.around, (height, width))


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
