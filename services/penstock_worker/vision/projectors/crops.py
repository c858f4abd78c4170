"""What makes rows of overlapping crops: queries that see a square of patches each, a gated
feed-forward, and rows of tokens around and among these (PooledProjector).

Source: Clark et al., "Molmo2", 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from penstock.forms.overlaps import NO_MARK, NO_PATCH
from penstock.model.projector_spec import PooledProjector
from penstock_kernels import reference
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.layer import TowerProduct
from penstock_worker.vision.picture import Picture, UnfitPicture
from penstock_worker.vision.picture_reading import PIXELS, of_pixels, only
from penstock_worker.vision.projector import Projector, ProjectorParts
from penstock_worker.vision.rows import RowThreads

POOLED, MARKS = "pooled", "marks"


class Crops(Projector[PooledProjector], of=PooledProjector):
    def __init__(self, spec: PooledProjector, around: ProjectorParts) -> None:
        super().__init__(spec, around)
        weights, inputs, outputs = around.weights, around.inputs, around.outputs
        size, inner = spec.size, spec.inner
        self._query = TowerProduct.load(weights, [("projector.q_proj", size)], inputs)
        seen = [(f"projector.{each}_proj", size) for each in "kv"]
        self._seen = TowerProduct.load(weights, seen, inputs)
        self._mixed = TowerProduct.load(weights, [("projector.out_proj", size)], size)
        up = [(f"projector.{each}_proj", inner) for each in ("gate", "up")]
        self._up = TowerProduct.load(weights, up, size, bias=False)
        self._down = TowerProduct.load(
            weights, [("projector.down_proj", outputs)], inner, bias=False
        )
        self._tokens = weights.take("projector.tokens", (spec.tokens, outputs))
        others = self._query.size + self._mixed.size + self._up.size + self._down.size
        self._work = others + 4 * self._seen.size

    def read(self, tensors: Mapping[str, np.ndarray]) -> Picture:
        pixels, pooled, marks = only(tensors, PIXELS, POOLED, MARKS)
        plain = of_pixels({PIXELS: pixels}, self._vision)
        if pooled.ndim != 2 or marks.shape != pooled.shape[:1] or not pooled.size:
            raise UnfitPicture(f"{POOLED} has shape {pooled.shape}, and {MARKS} {marks.shape}")
        if {pooled.dtype, marks.dtype} != {np.dtype(np.int32)}:
            raise UnfitPicture(f"{POOLED} is {pooled.dtype}, and {MARKS} {marks.dtype}; not int32")
        count = plain.tiles * plain.per_tile
        made = pooled[marks == NO_MARK]
        if min(pooled.min(), marks.min()) < -1 or pooled.max() >= count:
            raise UnfitPicture(f"{POOLED} has patches that aren't among {count}")
        if marks.max() >= self._spec.tokens or (made.max(1, initial=-1) < 0).any():
            raise UnfitPicture(f"{MARKS} has tokens that aren't among {self._spec.tokens}, or none")
        rows, tokens = (torch.from_numpy(each.astype(np.int64)) for each in (pooled, marks))
        return replace(plain, pooled=rows, marks=tokens)

    def rows(self, picture: Picture) -> int:
        return 0 if picture.marks is None else len(picture.marks)

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        if picture.pooled is None or picture.marks is None:
            raise TypeError("a picture of this tower says what its rows are made of")
        pooled, marks = (each.to(vectors.device) for each in (picture.pooled, picture.marks))
        made = marks == NO_MARK
        rows = self._tokens[torch.where(made, self._spec.patch_token, marks)]

        def of_squares(patches: Tensor) -> Tensor:
            there = patches != NO_PATCH
            return self._of_squares(vectors[patches.clamp(min=0)] * there[..., None], there)

        # Some squares' vectors at a time: those of all would take much memory for a video.
        found = yield from threads.mapped(of_squares, pooled[made], each=self._work)
        rows[made] = rows[made] + found
        return rows

    def _of_squares(self, shown: Tensor, there: Tensor) -> Tensor:
        """[squares, patches, inputs], zeros where none is `there`, to [squares, outputs]."""
        count, patches = there.shape
        means = shown.sum(1) / there.sum(1, keepdim=True)
        heads = self._spec.num_heads
        query = self._query(means.to(shown.dtype)).view(count, 1, heads, -1).transpose(1, 2)
        both = self._seen(shown.flatten(0, 1)).view(count, patches, 2, heads, -1)
        key, value = both.permute(2, 0, 3, 1, 4).contiguous().unbind(0)
        mask = there[:, None, None]
        mixed = functional.scaled_dot_product_attention(query.contiguous(), key, value, mask)
        gate, up = self._up(self._mixed(mixed.reshape(count, -1))).chunk(2, 1)
        return self._down(reference.plain_activation(gate, "silu") * up)
