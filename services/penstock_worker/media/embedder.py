"""What stands behind Gemma 3n's towers (EmbedderProjector, NormedTwiceProjector), and the names of
the conformer's tensors, and of what stands behind it, in the hub's files."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from penstock.model.projector_spec import NormedTwiceProjector
from penstock.model.sound_projector_spec import EmbedderProjector
from penstock_kernels import reference
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.layer import TowerProduct
from penstock_worker.vision.picture import Picture
from penstock_worker.vision.rows import RowThreads
from penstock_worker.weights.weights import Weights

_LAYER = re.compile(r"^(?:model\.)?audio_tower\.conformer\.(\d+)\.(.+?)(\.weight)?$")
_CONVOLUTION = re.compile(
    r"^(?:model\.)?audio_tower\.(subsample_conv_projection)\.conv_(\d)\.(.+)$"
)
_EMBEDDER = re.compile(r"^(?:model\.)?embed_audio\.(\w+)\.weight$")
_IN_LAYER = {
    "attention.pre_attn_norm": "norm_pre_attn",
    "attention.attn.q_proj": "q_proj",
    "attention.attn.k_proj": "k_proj",
    "attention.attn.v_proj": "v_proj",
    "attention.attn.per_dim_scale": "self_attn.per_dim_scale",
    "attention.attn.relative_position_embedding.pos_proj": "self_attn.relative_k_proj",
    "attention.post": "self_attn.post",
    "attention.post_norm": "norm_post_attn",
    "norm": "norm_out",
} | {
    f"ffw_layer_{theirs}.{part}": f"feed_forward{ours}.{part}"
    for theirs, ours in (("start", 1), ("end", 2))
    for part in ("pre_layer_norm", "ffw_layer_1", "ffw_layer_2", "post_layer_norm")
}
_IN_EMBEDDER = {
    "embedding": "projector.embedding",
    "hard_embedding_norm": "projector.own_norm",
    "soft_embedding_norm": "projector.norm",
}


def of_embedder(name: str) -> str | None:
    """Returns our name for a tensor that has one of its own in Gemma 3n's files; None for others,
    which are called as in Gemma 4's."""
    layer, convolution = _LAYER.match(name), _CONVOLUTION.match(name)
    if layer is not None:
        number, module, kind = layer.groups()
        return f"layers.{number}.{_IN_LAYER.get(module, module)}{kind or ''}"
    if convolution is not None:
        at, number, module = convolution.groups()
        return f"{at}.layer{number}.{module}"
    own = _EMBEDDER.match(name)
    if own is not None and own[1] in _IN_EMBEDDER:
        return f"{_IN_EMBEDDER[own[1]]}.weight"
    return None


class _Embedder:
    """Maps vectors, [vectors, inputs], to rows, [rows, outputs], and so tokens of the tower's own
    vocabulary."""

    def __init__(
        self,
        spec: EmbedderProjector | NormedTwiceProjector,
        weights: Weights,
        inputs: int,
        outputs: int,
        tokens: list[int],
    ) -> None:
        """tokens: whose rows are needed, `own`. Raises UnsupportedModel for weights that don't
        fit."""
        self._norm = weights.take("projector.norm.weight", (inputs,))
        self._product = TowerProduct.load(weights, [("projector", outputs)], inputs, bias=False)
        self._ones = torch.ones(outputs, dtype=weights.dtype, device=weights.device)
        self._eps = spec.eps
        norm = weights.take("projector.own_norm.weight", (inputs,))
        table = weights.take("projector.embedding.weight", (spec.vocab, inputs))
        self._own = self._rows(table[tokens], norm).split(1)

    @property
    def row_work(self) -> int:
        """Multiplications for each row."""
        return self._product.size

    def _rows(self, vectors: Tensor, norm: Tensor) -> Tensor:
        normed = reference.rms_norm(vectors, norm, self._eps)
        return reference.rms_norm(self._product(normed), self._ones, self._eps)


class Embedder(_Embedder):
    """Maps a sound's vectors to the rows of every sound."""

    def __init__(
        self, spec: EmbedderProjector, weights: Weights, inputs: int, outputs: int
    ) -> None:
        """Raises UnsupportedModel for weights that don't fit."""
        super().__init__(spec, weights, inputs, outputs, [spec.filler, spec.end])
        self._vectors = spec.vectors

    def __call__(self, vectors: Tensor) -> Tensor:
        """Computes the rows."""
        rows, (filler, end) = self._rows(vectors, self._norm), self._own
        fillers = filler.expand(self._vectors - len(rows), -1)
        return torch.cat((rows, fillers, end))


class PictureEmbedder(_Embedder):
    """Computes a NormedTwiceProjector. Loads its weights when it is constructed."""

    def __init__(
        self, spec: NormedTwiceProjector, weights: Weights, inputs: int, outputs: int
    ) -> None:
        """Raises UnsupportedModel for weights that don't fit."""
        super().__init__(spec, weights, inputs, outputs, [spec.end])

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        """Maps a picture's vectors to its rows."""
        large = vectors * vectors.shape[1] ** 0.5
        (end,) = self._own
        rows = yield from threads.mapped(
            lambda some: self._rows(some, self._norm), large, each=self.row_work
        )
        return torch.cat((rows, end))
