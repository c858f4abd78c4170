"""What makes lines of rows of a sheet's tiles: means of squares of patches, learned vectors between
lines and parts, and two products (SheetProjector); and the names of these tensors.

Source: Microsoft, "Phi-4-mini technical report", 2025.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from penstock.model.projector_spec import SheetProjector
from penstock_kernels import reference
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.layer import TowerProduct
from penstock_worker.vision.picture import Picture, squares_of
from penstock_worker.vision.rows import RowThreads
from penstock_worker.weights.weights import Weights

_IMAGE = re.compile(r"^(?:model\.)?embed_tokens_extend\.image_embed\.(?!img_processor\.)")
TOWER = r"embed_tokens_extend\.image_embed\.img_processor"
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
    """Returns our name for a tensor behind Phi-4-multimodal's tower; None for another. An unknown
    name stays as it is, without its prefix."""
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
        self._first = TowerProduct.load(weights, [("projector.1", outputs)], inputs)
        self._second = TowerProduct.load(weights, [("projector.2", outputs)], outputs)
        self._newline = weights.take("projector.newline", (1, 1, 1, inputs)).view(inputs)
        self._between = weights.take("projector.between", (1, 1, inputs)).view(1, inputs)
        self._factor = spec.factor

    @property
    def row_work(self) -> int:
        """Multiplications for each row."""
        return self._first.size + self._second.size

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        tiles = vectors.unflatten(0, (picture.tiles, picture.rows, picture.columns))
        squares = squares_of(tiles, self._factor).float().mean(1).to(vectors.dtype)
        rows, columns = picture.rows // self._factor, picture.columns // self._factor
        means = squares.unflatten(0, (picture.tiles, rows, columns))
        sheet = means[1:].unflatten(0, picture.form).transpose(1, 2).flatten(2, 3).flatten(0, 1)
        seen = (
            (count - 1) * own + -(-last // self._factor)
            for count, own, last in zip(
                picture.form, (rows, columns), picture.shown[-1], strict=True
            )
        )
        high, wide = seen
        lines = [self._in_lines(sheet[:high, :wide]), self._between, self._in_lines(means[0])]
        return (yield from threads.mapped(self._made, torch.cat(lines), each=self.row_work))

    def _in_lines(self, picture: Tensor) -> Tensor:
        """The vectors of [rows, columns, inputs] as lines, each of which a learned one ends."""
        ends = self._newline.expand(len(picture), 1, -1)
        return torch.cat((picture, ends), 1).flatten(0, 1)

    def _made(self, vectors: Tensor) -> Tensor:
        return self._second(reference.plain_activation(self._first(vectors), "gelu"))
