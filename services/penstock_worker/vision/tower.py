"""A vision transformer over the patches of one picture.

Sources: Dosovitskiy et al., "An image is worth 16x16 words", 2021; Radford et al., "CLIP", 2021;
Zhai et al., "SigLIP", 2023; Wang et al., "Qwen2-VL", 2024.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from penstock.vision_spec import LearnedPositions, TowerSpec
from penstock_kernels.reference import encoder as kernels
from penstock_worker.vision.layer import LAYER_OF, TowerLayer
from penstock_worker.vision.parts import TowerNorm, TowerProduct
from penstock_worker.vision.picture import Picture
from penstock_worker.vision.places import PatchLayout, table_rows
from penstock_worker.weights.weights import Weights


class Tower:
    """Loads its weights when it is constructed, and is read-only from then on."""

    def __init__(self, spec: TowerSpec, weights: Weights) -> None:
        """Raises UnsupportedModel for weights that don't fit."""
        size = spec.hidden_size
        kernel = (spec.frames, spec.patch, spec.patch)[spec.frames == 1 :]
        weight = weights.take("patch_embedding.weight", (size, spec.channels, *kernel))
        bias = weights.take("patch_embedding.bias", (size,)) if spec.patch_bias else None
        self._patches = TowerProduct(weight.flatten(1), bias)
        self._class = weights.take("class_embedding", (size,)) if spec.class_token else None
        self._table: Tensor | None = None
        if isinstance(spec.positions, LearnedPositions):
            rows = spec.positions.side**2 + spec.class_token
            self._table = weights.take("position_embedding.weight", (rows, size))
        self._first = TowerNorm(weights, "first_norm", size, spec.norm) if spec.first_norm else None
        self._layers = [
            TowerLayer(spec, weights, number, gated=spec.gated) for number in range(spec.num_layers)
        ]
        self._last = TowerNorm(weights, "last_norm", size, spec.norm) if spec.last_norm else None
        weights.ignore_those(lambda name: _unread(name, spec))
        self._spec = spec

    def __call__(
        self, picture: Picture, layout: PatchLayout, layer_done: Callable[[], None]
    ) -> Tensor:
        """Returns [rows, hidden]: each tile's patches, in the layout's order, behind its class
        token where that is kept. `layer_done` is called after each layer."""
        hidden, spec = self._embedded(picture, layout), self._spec
        rows = sum(layout.lengths)
        hidden = kernels.pad_tiles(hidden)
        angles = None if layout.angles is None else _padded(layout.angles)
        for number, layer in enumerate(self._layers):
            within = layout.lengths
            if spec.windows is not None and number not in spec.windows.whole:
                within = layout.windows
            hidden = layer(hidden, within, angles)
            layer_done()
        hidden = hidden[:rows] if self._last is None else self._last(hidden)[:rows]
        if spec.class_token and not spec.keeps_class:
            return hidden.unflatten(0, (picture.tiles, -1))[:, 1:].flatten(0, 1)
        return hidden

    def _embedded(self, picture: Picture, layout: PatchLayout) -> Tensor:
        spec, count = self._spec, len(picture.patches)
        patches = kernels.pad_tiles(picture.patches.to(self._patches.dtype))
        hidden = self._patches(patches)[:count]
        places = None
        if isinstance(spec.positions, LearnedPositions) and self._table is not None:
            places = self._table[table_rows(picture, spec.positions) + spec.class_token]
        tiles = hidden.unflatten(0, (picture.tiles, -1))
        if places is not None:
            tiles = tiles + places
        if self._class is not None:
            first = self._class if self._table is None else self._class + self._table[0]
            tiles = torch.cat((first.expand(picture.tiles, 1, -1), tiles), 1)
        flat = layout.ordered(tiles.flatten(0, 1))
        return flat if self._first is None else self._first(flat)


def _padded(angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return kernels.pad_tiles(angles[0]), kernels.pad_tiles(angles[1])


def _unread(name: str, spec: TowerSpec) -> bool:
    """Whether a tensor belongs to what is behind the output that is taken: further layers, a norm,
    a head that pools."""
    if name.startswith(LAYER_OF):
        number = name.removeprefix(LAYER_OF).partition(".")[0]
        return number.isdigit() and int(number) >= spec.num_layers
    return name.startswith("head.") or (name.startswith("last_norm.") and not spec.last_norm)
