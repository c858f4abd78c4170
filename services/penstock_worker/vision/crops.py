"""What makes rows of overlapping crops: queries that see a square of patches each, a gated
feed-forward, and rows of tokens around and among these (PooledProjector); and the names of Molmo
2's tensors.

Source: Clark et al., "Molmo2", 2026.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor
from torch.nn import functional

from penstock.forms.overlaps import NO_MARK, NO_PATCH
from penstock.model.projector_spec import PooledProjector
from penstock_kernels import reference
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.layer import TowerProduct
from penstock_worker.vision.picture import Picture
from penstock_worker.vision.rows import RowThreads
from penstock_worker.weights.weights import Weights

_BACKBONE = re.compile(r"^(?:model\.)?vision_backbone\.")
_FURTHER = re.compile(r"^(?:model\.)?(?:transformer\.)?wte\.new_embedding$")
_LAYER = re.compile(r"^image_vit\.transformer\.resblocks\.(\d+)\.(.+?)(\.weight|\.bias)$")
_IN_LAYER = {
    "attention.wq": "q_proj",
    "attention.wk": "k_proj",
    "attention.wv": "v_proj",
    "attention.wo": "out_proj",
    "attention_norm": "norm1",
    "ffn_norm": "norm2",
    "feed_forward.w1": "up_proj",
    "feed_forward.w2": "down_proj",
}
_OUTSIDE = {
    "image_vit.patch_embedding": "patch_embedding",
    "image_pooling_2d.wq": "projector.q_proj",
    "image_pooling_2d.wk": "projector.k_proj",
    "image_pooling_2d.wv": "projector.v_proj",
    "image_pooling_2d.wo": "projector.out_proj",
    "image_projector.w1": "projector.gate_proj",
    "image_projector.w2": "projector.down_proj",
    "image_projector.w3": "projector.up_proj",
}
_POSITIONS = "image_vit.positional_embedding"


def of_crops(name: str) -> str | None:
    """Returns our name for a tensor of Molmo 2's tower and what follows it; None for another. An
    unknown name stays as it is, without its prefix."""
    if _FURTHER.match(name):
        return "projector.tokens"
    if not _BACKBONE.match(name):
        return None
    inner = _BACKBONE.sub("", name)
    if inner == _POSITIONS:
        return "position_embedding.weight"
    layer = _LAYER.fullmatch(inner)
    if layer is not None:
        return f"layers.{layer[1]}.{_IN_LAYER.get(layer[2], layer[2])}{layer[3]}"
    module, _, kind = inner.rpartition(".")
    return f"{_OUTSIDE.get(module, module)}.{kind}"


class Crops:
    """Computes a PooledProjector. Loads its weights when it is constructed."""

    def __init__(self, spec: PooledProjector, weights: Weights, inputs: int, outputs: int) -> None:
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
        self._spec = spec

    @property
    def row_work(self) -> int:
        """Multiplications for each row."""
        return (
            self._query.size
            + 4 * self._seen.size
            + self._mixed.size
            + self._up.size
            + self._down.size
        )

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
        found = yield from threads.mapped(of_squares, pooled[made], each=self.row_work)
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
