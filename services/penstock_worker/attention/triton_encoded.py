"""Attention to an encoder's output on CUDA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from penstock_kernels.triton.attention.kv_scales import KVScales
from penstock_kernels.triton.attention.paged import paged_attention
from penstock_kernels.triton.attention.plan import DeviceAttentionPlan, TileList
from penstock_kernels.triton.attention.rope_write import rope_write


class LayerCache(NamedTuple):
    """A layer's part of the cache."""

    keys: Tensor
    """The layer's key cache, [kv_heads, slots, head_dim]."""
    values: Tensor
    """The layer's value cache, [kv_heads, slots, head_dim]."""
    kind: int
    """Which kind of heads these are."""
    scales: KVScales | None
    """Scales of an fp8 cache; None if all are 1."""


OfLayer = Callable[[int], LayerCache]


class EncodedRows:
    """EncodedAttention of a step's rows of encoders, which are stored."""

    seeing: Tensor | None = None

    def __init__(self, of_layer: OfLayer, slots: Tensor) -> None:
        """`slots`: [n] int32, where they are stored."""
        self._of_layer = of_layer
        self._slots = slots

    def store(self, layer: int, key: Tensor, value: Tensor) -> None:
        own = self._of_layer(layer)
        rope_write(key, key, value, None, self._slots, own.keys, own.values, scales=own.scales)

    def attend(self, layer: int, query: Tensor) -> Tensor:
        raise TypeError("rows of an encoder attend to nothing")


class EncodedKeys:
    """EncodedAttention of a step's rows of decoders: each sees all of the encoder's rows, which are
    its sequence's first ones."""

    seeing: Tensor | None = None

    def __init__(
        self, of_layer: OfLayer, plan: DeviceAttentionPlan, slots: Tensor, rows: int
    ) -> None:
        """`plan`, `slots`: those of the step's attention to its own keys. `rows`: of the
        encoder."""
        self._of_layer = of_layer
        self._plan = replace(
            plan,
            few=_within(plan.few, rows),
            many=_within(plan.many, rows),
            last_seen=torch.full_like(slots, rows - 1),
        )

    def store(self, layer: int, key: Tensor, value: Tensor) -> None:
        raise TypeError("rows of a decoder are stored with their own keys and values")

    def attend(self, layer: int, query: Tensor) -> Tensor:
        own, scale = self._of_layer(layer), query.shape[-1] ** -0.5
        return paged_attention(query, own.keys, own.values, self._plan, scale, scales=own.scales)


def _within(tiles: TileList | None, rows: int) -> TileList | None:
    """Tiles of the same queries, which see the first `rows` keys."""
    if tiles is None:
        return None
    return replace(tiles, end=rows, ends=torch.full_like(tiles.sequences, rows))
