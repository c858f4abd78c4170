"""What makes lines of rows of a sheet's tiles: squares of patches or their means, learned vectors
between lines and parts, and two products (SheetProjector); and the names of these tensors.

Sources: Microsoft, "Phi-3 technical report", 2024, and "Phi-4-mini technical report", 2025.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from penstock.model.projector_spec import SheetProjector
from penstock_kernels import reference
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.layer import TowerProduct
from penstock_worker.vision.picture import Picture, seen_on_sheet, squares_of
from penstock_worker.vision.rows import RowThreads
from penstock_worker.weights.weights import Weights

_IMAGE = re.compile(
    r"^(?:model\.)?(?:embed_tokens_extend\.image_embed|vision_embed_tokens)\.(?!img_processor\.|wte\.)"
)
TOWER = (
    r"embed_tokens_extend\.image_embed\.img_processor"
    r"|vision_embed_tokens\.img_processor\.vision_model"
)
"""Pattern of what stands before the names of the tower's tensors."""
_NAMES = {
    "img_projection_up.": "projector.1.",
    "img_projection_down.": "projector.2.",
    "img_projection.0.": "projector.1.",
    "img_projection.2.": "projector.2.",
    "sub_img_feature_extensor": "projector.newline",
    "sub_GN": "projector.newline",
    "global_img_feature_extensor": "projector.between",
    "glb_GN": "projector.between",
}
"""transformers' names and the makers'."""


def of_sheet(name: str) -> str | None:
    """Returns our name for a tensor behind the tower of Phi-4-multimodal or Phi-3-vision; None for
    another. An unknown name stays as it is, without its prefix."""
    if not _IMAGE.match(name):
        return None
    inner = _IMAGE.sub("", name)
    for theirs, ours in _NAMES.items():
        if inner == theirs or (theirs.endswith(".") and inner.startswith(theirs)):
            return ours + inner.removeprefix(theirs)
    return inner


class Sheets:
    """Computes a SheetProjector. Loads its weights when it is constructed."""

    def __init__(self, spec: SheetProjector, weights: Weights, inputs: int, outputs: int) -> None:
        wide = spec.width(inputs)
        self._first = TowerProduct.load(weights, [("projector.1", outputs)], wide)
        self._second = TowerProduct.load(weights, [("projector.2", outputs)], outputs)
        self._newline = weights.take("projector.newline", (1, 1, 1, wide)).view(wide)
        self._between = weights.take("projector.between", (1, 1, wide)).view(1, wide)
        self._spec = spec

    @property
    def row_work(self) -> int:
        """Multiplications for each row."""
        return self._first.size + self._second.size

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        tiles = vectors.unflatten(0, (picture.tiles, picture.rows, picture.columns))
        factor = self._spec.factor
        squares = squares_of(tiles, factor)
        if self._spec.whole:
            made = squares.flatten(1)
        else:
            made = squares.float().mean(1).to(vectors.dtype)
        form = (picture.tiles, picture.rows // factor, picture.columns // factor)
        cells = made.unflatten(0, form)
        sheet = cells[1:].unflatten(0, picture.form).transpose(1, 2).flatten(2, 3).flatten(0, 1)
        high, wide = (-(-count // factor) for count in seen_on_sheet(picture))
        lines = [self._in_lines(sheet[:high, :wide]), self._between, self._in_lines(cells[0])]
        return (yield from threads.mapped(self._made, torch.cat(lines), each=self.row_work))

    def _in_lines(self, picture: Tensor) -> Tensor:
        """The vectors of [rows, columns, inputs] as lines, each of which a learned one ends."""
        ends = self._newline.expand(len(picture), 1, -1)
        return torch.cat((picture, ends), 1).flatten(0, 1)

    def _made(self, vectors: Tensor) -> Tensor:
        return self._second(reference.plain_activation(self._first(vectors), "gelu"))
