"""Calls of recurrent layers in the shapes of LFM2-1.2B, Qwen3-Next-80B and Granite 4 Tiny, for the
compiler."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from penstock_kernels.triton.recurrent.causal_conv import causal_conv
from penstock_kernels.triton.recurrent.gated_delta import DeltaHeads, gated_delta
from penstock_kernels.triton.recurrent.mamba2 import SelectiveSizes, mamba2
from penstock_kernels.triton.recurrent.states import (
    DeviceStateMemory,
    DeviceStateMoves,
    LayerStates,
)

ROWS = 3


def states(numbers: int, results: int) -> LayerStates:
    """States of one layer, after another one of the same size."""
    memory = DeviceStateMemory(
        torch.zeros(2, 2 * numbers), torch.zeros(2, 2 * results), torch.zeros(8, 9, 1024)
    )
    row = torch.zeros(ROWS, dtype=torch.int32)
    blocks = torch.zeros(ROWS, 5, dtype=torch.int32)
    moves = DeviceStateMoves(row, row, row, row, row, row, blocks)
    return LayerStates(memory, moves, 1, numbers, results)


def features(columns: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(ROWS, columns, dtype=dtype)


def convolve(dtype: torch.dtype) -> None:
    weight = torch.zeros(3, 2048)
    own = states(2 * 2048, 2048)
    causal_conv(own, features(3 * 2048, dtype), 4096, weight, None, gate=0)
    causal_conv(own, features(3 * 2048, dtype), 4096, weight, torch.zeros(2048), gate=0)


def deltas(dtype: torch.dtype, *, tiled: bool = False) -> None:
    heads = DeltaHeads(16, 32, 128, 128, tiled=tiled)
    channels, values = 2 * 2048 + 4096, 4096
    own = states(3 * channels + 32 * 128 * 128, values)
    rows = features(channels + values + 64, dtype)
    convolved = causal_conv(own, rows, 0, torch.zeros(4, channels), None)
    of_heads = torch.zeros(32), torch.zeros(32)
    gated_delta(
        own, rows, convolved, of_heads, heads, strength=channels + values, matrix=3 * channels,
        eps=1e-6,
    )  # fmt: skip


def selections(dtype: torch.dtype) -> None:
    sizes = SelectiveSizes(48, 64, 1, 128, (0.0, float("inf")))
    inner, channels = 48 * 64, 48 * 64 + 2 * 128
    own = states(3 * channels + inner * 128, inner)
    rows = features(inner + channels + 48, dtype)
    convolved = causal_conv(own, rows, inner, torch.zeros(4, channels), torch.zeros(channels))
    of_heads = torch.zeros(48), torch.zeros(48), torch.zeros(48)
    mamba2(own, rows, convolved, of_heads, sizes, time=inner + channels, matrix=3 * channels)


RECURRENT_CALLS: dict[str, Callable[[], object]] = {
    "short-convolution": partial(convolve, torch.bfloat16),
    "short-convolution-float32": partial(convolve, torch.float32),
    "gated-delta": partial(deltas, torch.bfloat16),
    "gated-delta-tiled": partial(deltas, torch.float32, tiled=True),
    "mamba2": partial(selections, torch.bfloat16),
}
