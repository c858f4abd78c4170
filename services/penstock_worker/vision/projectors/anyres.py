"""Rows of a picture's tiles as lines of one picture (AnyresProjector).

Source: Li et al., "LLaVA-OneVision", 2024.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from penstock.forms import anyres
from penstock.model.projector_spec import AnyresProjector
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.picture import Picture, UnfitPicture
from penstock_worker.vision.picture_reading import MAX_SIDE, PIXELS, of_pixels, only
from penstock_worker.vision.projector import Projector, ProjectorParts
from penstock_worker.vision.rows import RowThreads
from penstock_worker.vision.two_products import TwoProducts

SIZE = "image_size"
Tiled = TypeVar("Tiled", bound=AnyresProjector)


class InLines(Projector[Tiled]):
    """Makes lines of the rows of all tiles but the first, the whole picture."""

    def read(self, tensors: Mapping[str, np.ndarray]) -> Picture:
        spec = self._vision
        if SIZE not in tensors:
            return replace(of_pixels(tensors, spec), frames=True)
        _, size = only(tensors, PIXELS, SIZE)
        if size.shape != (2,) or size.dtype != np.int32 or not (1 <= size.min() <= MAX_SIDE):
            raise UnfitPicture(f"{SIZE} is {size.dtype} of shape {size.shape}; 2 int32 are needed")
        if size.max() > MAX_SIDE:
            raise UnfitPicture(f"{SIZE} is {size.max()}; at most {MAX_SIDE} pixels are allowed")
        height, width = (int(each) for each in size)
        plain = of_pixels({PIXELS: tensors[PIXELS]}, spec)
        picture = replace(plain, size=(height, width))
        form = self.shape(picture).form
        if picture.tiles != 1 + form[0] * form[1]:
            raise UnfitPicture(
                f"a picture of {width} x {height} pixels has {picture.tiles} tiles; "
                f"{1 + form[0] * form[1]} are needed"
            )
        return picture

    def shape(self, picture: Picture) -> anyres.AnyresShape:
        """Returns how the picture's tiles after the first one become rows."""
        side, vision, spec = self._spec.side(picture.rows), self._vision, self._spec
        return anyres.anyres_shape(
            picture.size, spec.forms, vision.image_size or 1, side, spec.most
        )

    def rows(self, picture: Picture) -> int:
        if picture.frames:
            return picture.tiles * prod(pooled_side(picture)) + 1
        shape = self.shape(picture)
        return self._spec.side(picture.rows) ** 2 + shape.rows * (shape.columns + 1)


class Anyres(InLines[AnyresProjector], of=AnyresProjector):
    def __init__(self, spec: AnyresProjector, around: ProjectorParts) -> None:
        super().__init__(spec, around)
        self._products = TwoProducts(
            around.weights,
            around.inputs,
            around.outputs,
            activation=spec.activation,
            bias=spec.bias,
        )
        self._newline = around.weights.take("projector.newline", (around.outputs,))
        self._work = self._products.size

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        rows = yield from threads.mapped(self._products, vectors, each=self._work)
        if picture.frames:
            return self._of_frames(rows, picture)
        return in_lines(rows, picture.rows, self.shape(picture), self._newline)

    def _of_frames(self, rows: Tensor, picture: Picture) -> Tensor:
        """Half of each frame's rows and columns, and the vector that ends a line after all."""
        planes = rows.unflatten(0, (picture.tiles, picture.rows, picture.columns))
        planes = planes.permute(0, 3, 1, 2).contiguous()
        size = list(pooled_side(picture))
        pooled = functional.interpolate(planes, size=size, mode="bilinear")
        lines = pooled.permute(0, 2, 3, 1).flatten(0, 2)
        return torch.cat((lines, self._newline[None])).contiguous()


def in_lines(rows: Tensor, side: int, shape: anyres.AnyresShape, newline: Tensor) -> Tensor:
    """Rows of tiles of side x side, [rows, size], as rows of a picture: the first tile's, then
    those of the others as lines of one picture, each ended by `newline`, [size]."""
    first, others = rows[: side * side], rows[side * side :]
    tiles = others.unflatten(0, (*shape.form, side, side))
    whole = tiles.permute(4, 0, 2, 1, 3).flatten(1, 2).flatten(2, 3)
    high, wide = whole.shape[1:]
    top, left = shape.bars
    seen = whole[:, top : high - top, left : wide - left].contiguous()
    if seen.shape[1:] != (shape.rows, shape.columns):
        size = [shape.rows, shape.columns]
        seen = functional.interpolate(seen[None], size, mode="bilinear")[0]
    ends = newline[:, None, None].expand(-1, shape.rows, 1)
    lines = torch.cat((seen, ends), 2).flatten(1).t()
    return torch.cat((first, lines)).contiguous()


def pooled_side(picture: Picture) -> tuple[int, int]:
    """Rows and columns of embeddings of a frame."""
    return -(-picture.rows // 2), -(-picture.columns // 2)
