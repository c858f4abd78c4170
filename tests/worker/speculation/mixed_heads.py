"""A model whose layers mix several residuals, and the head of its checkpoints, as slow and obvious
torch beside transformers' own layers."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from tests.worker.speculation.slow_heads import (
    HIDDEN,
    LAYERS,
    MTPLayer,
    Reference,
    circle,
    rms,
)


class MixedReference(Reference):
    """A model by transformers' layers: hidden states are [rows, residuals, hidden]."""

    def through(self, hidden: Tensor, layers: Any, tokens: list[int] | None = None) -> list[Tensor]:
        """`tokens`: of layers in which these choose experts."""
        rows, model = len(hidden), self.hub.model
        positions = torch.arange(rows)[None]
        turned = {
            kind: model.rotary_emb(hidden[None, :, 0], positions, kind)
            for kind in ("main", "compress")
        }
        found = [hidden]
        for layer in layers:
            made = layer(
                found[-1][None],
                input_ids=None if tokens is None else torch.tensor([tokens]),
                attention_mask=self._mask(layer, rows),
                position_ids=positions,
                position_embeddings=turned,
                past_key_values=None,
            )
            found.append(made[0])
        return found

    def hidden(self, tokens: list[int]) -> list[Tensor]:
        count = self.hub.config.hc_mult
        residuals = self.embedded(tokens)[:, None].expand(-1, count, -1).contiguous()
        return self.through(residuals, self.hub.model.layers[: self.layers], tokens)

    def next(self, tokens: list[int]) -> int:
        model = self.hub.model
        last = model.norm(model.hc_head(self.hidden(tokens)[-1][None]))[0, -1]
        return int(self.hub.lm_head(last).argmax())


class MixedLayer(MTPLayer):
    """A layer as DeepSeek-V4's checkpoints have it, after MTPBlock of the makers' code. It reads
    every residual of the model, each by itself, and has its own weights of what is read of them in
    the end."""

    normed_input: ClassVar = False

    def __init__(self, reference: Reference, number: int) -> None:
        self.reference = reference
        self.number = number
        config = reference.hub.config
        self.eps, self.least = config.rms_norm_eps, config.hc_eps
        count = config.hc_mult
        generator = torch.Generator().manual_seed(5 + number)
        shapes = {
            **{f"{name}.weight": (HIDDEN,) for name in ("enorm", "hnorm", "norm")},
            **{f"{name}.weight": (HIDDEN, HIDDEN) for name in ("e_proj", "h_proj")},
            "hc_head_fn": (count, count * HIDDEN),
            "hc_head_base": (count,),
            "hc_head_scale": (1,),
        }
        self.tensors = {}
        for name, shape in shapes.items():
            values = torch.randn(shape, generator=generator)
            scaled = values * 1.6 / shape[-1] ** 0.5 if len(shape) > 1 else 1 + values / 5
            self.tensors[f"mtp.{number}.{name}"] = scaled

    def count_on(self) -> None:
        _, step = circle()
        for name in ("enorm", "hnorm", "norm"):
            self._own(f"{name}.weight").fill_(1.0)
        for name, share in (("e_proj", torch.eye(HIDDEN)), ("h_proj", step)):
            self._own(f"{name}.weight").mul_(0.02).add_(share)

    def _own(self, name: str) -> Tensor:
        return self.tensors[f"mtp.{self.number}.{name}"]

    def _normed(self, x: Tensor, name: str) -> Tensor:
        return rms(x, self._own(f"{name}.weight"), self.eps)

    def _read(self, residuals: Tensor) -> Tensor:
        flat = residuals.flatten(1)
        products = flat @ self._own("hc_head_fn").T
        products = products * torch.rsqrt(flat.pow(2).mean(-1, keepdim=True) + self.eps)
        logits = products * self._own("hc_head_scale") + self._own("hc_head_base")
        weights = torch.sigmoid(logits) + self.least
        return (weights[..., None] * residuals).sum(1)

    def rows(self, tokens: list[int], hidden: Tensor) -> tuple[int, Tensor]:
        embedded = self._normed(self.reference.embedded(tokens), "enorm")
        joined = self._normed(hidden, "hnorm") @ self._own("h_proj.weight").T
        joined = joined + (embedded @ self._own("e_proj.weight").T)[:, None]
        layer = self.reference.hub.model.layers[LAYERS + self.number]
        found = self.reference.through(joined, [layer])[-1]
        normed = self._normed(self._read(found), "norm")
        return int(self.reference.hub.lm_head(normed[-1]).argmax()), found
