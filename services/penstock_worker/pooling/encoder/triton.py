"""The CUDA kernels of encoders."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock.model import mechanisms as mechanism
from penstock_kernels.triton.attention.encoder import (
    InputPlan,
    InputVariant,
    encoder_attention,
    plan_inputs,
)
from penstock_kernels.triton.attention.rope_write import QueryKeyNorms, rope_write
from penstock_kernels.triton.tiles import AttentionTiles, encoder_tiles
from penstock_worker.attention.interface import PLAIN_RULE, HeadNorms, Rotation, ScoreRule
from penstock_worker.attention.triton_step import rotary_tables
from penstock_worker.forward.common_mechanisms import COMMON
from penstock_worker.forward.uploads import Uploads
from penstock_worker.layers.triton_ops import TritonOps
from penstock_worker.pooling.encoder.kernels import EncoderStep

ENCODER_MECHANISMS = (COMMON | mechanism.OF_ENCODERS) - {
    mechanism.CHUNKS,
    mechanism.SINKS,
    mechanism.LATENT,
    mechanism.SHARED_KV,
    mechanism.CROSS_ATTENTION,
    *mechanism.RECURRENT,
}
"""What the layers of an encoder may have here: those that need a cache have no kernels."""


@dataclass(frozen=True)
class TritonWithinInputs:
    """StepAttention within each input. It keeps nothing."""

    bias: Tensor | None
    """The bias that EncoderKernels.lay_out takes."""
    plan: InputPlan
    rows: Tensor
    """[rows] int32: their own numbers."""
    causal: bool

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rotation: Rotation | None,
        norms: HeadNorms | None = None,
        rule: ScoreRule = PLAIN_RULE,
    ) -> Tensor:
        if rotation is not None or norms is not None:
            query, key, value = self._turned(query, key, value, rotation, norms)
        variant = InputVariant(rule.window or 0, self.causal, rule.soft_cap or 0.0)
        return encoder_attention(
            query, key, value, self.plan, self.bias, scale=rule.scale, variant=variant
        )

    def _turned(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rotation: Rotation | None,
        norms: HeadNorms | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns a cache that has a slot for each row, and isn't read after this layer."""
        keys, values = torch.empty(2, *key.shape, dtype=key.dtype, device=key.device)
        query = rope_write(
            query,
            key,
            value,
            rotary_tables(rotation),
            self.rows,
            keys.transpose(0, 1),
            values.transpose(0, 1),
            norms=None if norms is None else QueryKeyNorms(norms.query, norms.key, norms.eps),
        )
        return query, keys, values


class TritonEncoderKernels:
    """The CUDA kernels for one encoder."""

    def __init__(
        self, device: torch.device, dtype: torch.dtype, head_dim: int, *, batch_invariant: bool
    ) -> None:
        """`dtype` is that of weights and activations, `head_dim` the model's. With
        `batch_invariant`, products sum in one order whatever the number of rows, as all other
        operations here do in any case."""
        self.ops = TritonOps(device, dtype, batch_invariant=batch_invariant)
        self._tiles: AttentionTiles = encoder_tiles(head_dim, dtype)
        self._uploads = Uploads(device)

    def lay_out(
        self,
        tokens: np.ndarray,
        positions: np.ndarray,
        types: np.ndarray,
        lengths: list[int],
        bias: Tensor | None = None,
        *,
        causal: bool = False,
        seen: list[int] | None = None,
    ) -> EncoderStep:
        """Copies the inputs to the device in one transfer, without waiting for it."""
        if seen is not None:
            raise ValueError("tokens that others don't see have no kernel here")
        rows = np.arange(len(tokens))
        arrays = [tokens, positions, types, rows, *plan_inputs(lengths, self._tiles)]
        sent = self._uploads.send(arrays)
        attention = TritonWithinInputs(bias, InputPlan(self._tiles, *sent[4:]), sent[3], causal)
        return EncoderStep(sent[0].long(), sent[1].long(), sent[2].long(), attention)
