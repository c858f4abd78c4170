"""Projectors that make one row of a picture: its vector in the space that texts share.

Sources: Radford et al., "CLIP", 2021; Zhai et al., "SigLIP", 2023.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from penstock.model.projector_spec import ClassProjector, ProbeProjector
from penstock_kernels import reference
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.layer import TowerNorm, TowerProduct
from penstock_worker.vision.picture import Picture
from penstock_worker.vision.projector import Form, Projector, ProjectorParts
from penstock_worker.vision.rows import RowThreads


class OneVector(Projector[Form]):
    """Makes one row of each tile."""

    def rows(self, picture: Picture) -> int:
        return picture.tiles


class ClassVector(OneVector[ClassProjector], of=ClassProjector):
    """What the class token gives."""

    def __init__(self, spec: ClassProjector, around: ProjectorParts) -> None:
        super().__init__(spec, around)
        self._norm = TowerNorm(around.weights, "last_norm", around.inputs, spec.norm)
        shape = ("head.projection", around.outputs)
        self._product = TowerProduct.load(around.weights, [shape], around.inputs, bias=False)
        self._work = self._product.size

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        first = vectors.unflatten(0, (picture.tiles, -1))[:, 0].contiguous()
        yield 0
        return self._product(self._norm(first))


class ProbeVector(OneVector[ProbeProjector], of=ProbeProjector):
    """What a learned query finds among all patches, and a feed-forward makes of it."""

    def __init__(self, spec: ProbeProjector, around: ProjectorParts) -> None:
        super().__init__(spec, around)
        weights, tower = around.weights, around.vision.tower
        size, inner = tower.hidden_size, tower.intermediate_size
        probe = weights.take("head.probe", (1, 1, size))[0]
        matrix = weights.take("head.attention.in_proj_weight", (3 * size, size))
        bias = weights.take("head.attention.in_proj_bias", (3 * size,))
        # The query is the same for all pictures.
        query = functional.linear(probe, matrix[:size], bias[:size])
        self._query = query.unflatten(1, (tower.num_heads, -1))
        self._keys = TowerProduct(matrix[size:].clone(), bias[size:].clone())
        self._mixed = TowerProduct.load(weights, [("head.attention.out_proj", size)], size)
        self._norm = TowerNorm(weights, "head.layernorm", size, tower.norm)
        self._up = TowerProduct.load(weights, [("head.mlp.fc1", inner)], size)
        self._down = TowerProduct.load(weights, [("head.mlp.fc2", size)], inner)
        self._tower = tower
        self._work = self._mixed.size + self._up.size + self._down.size

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        seen = yield from threads.mapped(self._keys, vectors, each=self._keys.size)
        found = [self._found(tile) for tile in seen.chunk(picture.tiles)]
        return self._feed_forward(torch.cat(found))

    def _found(self, seen: Tensor) -> Tensor:
        """[1, hidden] of one tile's keys and values, [patches, 2 * hidden]."""
        apart = seen.unflatten(1, (2, self._tower.num_heads, -1)).permute(1, 2, 0, 3)
        key, value = (each.contiguous()[None] for each in apart.unbind(0))
        query = self._query.transpose(0, 1).contiguous()[None]
        found = functional.scaled_dot_product_attention(query, key, value)
        return found[0].transpose(0, 1).flatten(1)

    def _feed_forward(self, found: Tensor) -> Tensor:
        mixed = self._mixed(found.contiguous())
        inner = reference.plain_activation(self._up(self._norm(mixed)), self._tower.activation)
        return mixed + self._down(inner)
