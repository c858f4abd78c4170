"""What stands behind Gemma 3n's conformer (EmbedderProjector), and the names of both in the hub's
files."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from penstock.model.audio_spec import EmbedderProjector
from penstock_kernels import reference
from penstock_worker.vision.layer import TowerProduct
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


class Embedder:
    """Maps a sound's vectors, [vectors, inputs], to the rows of every sound, [rows, outputs]."""

    def __init__(
        self, spec: EmbedderProjector, weights: Weights, inputs: int, outputs: int
    ) -> None:
        """Raises UnsupportedModel for weights that don't fit."""
        self._norm = weights.take("projector.norm.weight", (inputs,))
        self._product = TowerProduct.load(weights, [("projector", outputs)], inputs, bias=False)
        self._ones = torch.ones(outputs, dtype=weights.dtype, device=weights.device)
        self._spec = spec
        own = weights.take("projector.own_norm.weight", (inputs,))
        table = weights.take("projector.embedding.weight", (spec.vocab, inputs))
        taken = table[[spec.filler, spec.end]]
        self._filler, self._end = self._rows(taken, own).split(1)

    def _rows(self, vectors: Tensor, norm: Tensor) -> Tensor:
        normed = reference.rms_norm(vectors, norm, self._spec.eps)
        return reference.rms_norm(self._product(normed), self._ones, self._spec.eps)

    def __call__(self, vectors: Tensor) -> Tensor:
        """Computes the rows."""
        rows = self._rows(vectors, self._norm)
        fillers = self._filler.expand(self._spec.vectors - len(rows), -1)
        return torch.cat((rows, fillers, self._end))
