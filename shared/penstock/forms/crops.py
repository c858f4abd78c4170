"""What a model's files say of crops that overlap, of which `overlaps` counts patches."""

from __future__ import annotations

from penstock.forms.form import ImageForm


class CropForm(ImageForm, frozen=True, kw_only=True):
    """Molmo 2's: the whole of a picture as one square, followed by overlapping squares of it, on a
    canvas whose form is the nearest to its own. Nothing keeps its proportions.

    side: of a square, pixels.  patch: side, pixels.  pool: rows and columns of patches that become
    one embedding.  margins: patches of a crop at the left and above, and at the right and below,
    which its neighbours show, too.  most: crops.
    """

    side: int
    patch: int
    pool: tuple[int, int] = (2, 2)
    margins: tuple[int, int] = (4, 4)
    most: int = 8
    first_token: int
    """The first one of the tokens that stand for pictures alone, whose embeddings the model has by
    themselves."""
    whole_begin: int
    """The token before the embeddings of the whole."""
    begin: int
    """The one before those of the crops."""
    end: int
    """The token after either."""
    line_end: int
    """The one that ends a line of embeddings."""
    lines: bool = True
    """Whether it does so in those of the crops."""
    whole_lines: bool = False
    """Whether it does so in those of the whole."""
