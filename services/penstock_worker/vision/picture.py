"""A prepared picture as a tower reads it: its patches, and how they lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from penstock_worker.media.unfit import UnfitItem


class UnfitPicture(UnfitItem):
    """The tower can't take the picture. The message is for the client that sent it."""


@dataclass(frozen=True)
class Picture:
    """The patches of one item."""

    patches: Tensor
    """The numbers of each patch, [tiles * rows * columns, channels * frames * patch * patch]
    float32."""
    tiles: int
    """Equal parts that don't see one another: tiles of a picture, or frames."""
    rows: int
    """Rows of patches in a tile."""
    columns: int
    size: tuple[int, int] = (0, 0)
    """Rows and columns of pixels before the picture was prepared, of a tower that needs them."""
    frames: bool = False
    """Whether the tiles are frames of a video, of a tower that makes fewer rows of these."""
    form: tuple[int, int] = (1, 1)
    """Rows and columns of tiles, of a tower that needs them."""
    shown: tuple[tuple[int, int], ...] = ()
    """Rows and columns of patches of each tile that others see, which begin at the top left; empty:
    all are seen."""
    behind: Picture | None = None
    """Further tiles, of another size: the whole of a picture that was cut, or what was cut of it;
    then the same of a video's next frame."""
    beside: Picture | None = None
    """A larger one of the same, for a second tower."""

    pooled: Tensor | None = None
    """[rows, n] int64: which patches each row is made of, of a tower whose tiles overlap; see
    `penstock.forms.overlaps.pooled`."""

    marks: Tensor | None = None
    """[rows] int64: which tokens stand among them."""

    def parts(self) -> Iterator[Picture]:
        """Yields this part and those after it."""
        part: Picture | None = self
        while part is not None:
            yield part
            part = part.behind

    @property
    def per_tile(self) -> int:
        return self.rows * self.columns

    def merged(self, side: int) -> Picture:
        """The form of a picture whose squares of side x side patches have become one each."""
        if side == 1:
            return self
        return replace(self, rows=self.rows // side, columns=self.columns // side)


def in_squares(vectors: Tensor, picture: Picture, side: int) -> Tensor:
    """Puts the vectors of each square of side x side patches one after the other: [squares, side *
    side * size]. Squares are in order of their rows, and a square's patches too."""
    tiles = vectors.view(picture.tiles, picture.rows, picture.columns, -1)
    return squares_of(tiles, side).flatten(1)


def squares_of(tiles: Tensor, side: int) -> Tensor:
    """Maps [tiles, rows, columns, size] to [squares, side * side, size]."""
    count, rows, columns, size = tiles.shape
    apart = tiles.reshape(count, rows // side, side, columns // side, side, size)
    return apart.transpose(2, 3).reshape(-1, side * side, size).contiguous()
