"""Calls of the kernels for mixtures of experts, for the compiler."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from penstock_kernels.triton.experts import (
    fp8_products,
    gguf_products,
    level_products,
    placing,
    routing,
    sums,
)
from penstock_kernels.triton.experts.products import expert_linear
from penstock_kernels.triton.linear import gguf_weights
from penstock_kernels.triton.matmul_tiles import EXPERTS_FP8, expert_tiles
from penstock_kernels.triton.rowwise import activation, row_levels

CPU = torch.device("cpu")
FP32 = torch.float32


def rows(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(sizes).to(dtype)


def experts(count: int = 128, active: int = 8, **rule: Any) -> None:
    """Calls for one row, a few, many and very many."""
    for number in (1, 2, 300, 256 * count // active):
        raw = rows(number, count)
        correction = rows(count, dtype=torch.float32) if rule else None
        rules = routing.RoutingRule(count, active, **rule)
        chosen, weights = routing.route(raw, rules, correction)
        shape = expert_tiles(chosen.numel(), count, batch_invariant=False)
        placed = placing.place_rows(chosen, count, shape.rows)
        up, down = rows(count, 128, 64), rows(count, 64, 64)
        x = expert_linear(rows(number, 64), up, placed, tiles=shape)
        inner = activation.silu_mul(x)
        x = expert_linear(inner, down, placed, down[:, 0], tiles=shape)
        sums.sum_experts(x, weights)


def packed_experts(layout: gguf_weights.Layout) -> None:
    for number in (1, 300):
        chosen = torch.zeros(number, 4, dtype=torch.int32)
        shape = expert_tiles(4 * number, 32, batch_invariant=False)
        placed = placing.place_rows(chosen, 32, shape.rows)
        weights = gguf_weights.empty(layout, 32 * 128, 256, CPU)
        gguf_products.expert_gguf(rows(number, 256), weights, 32, placed, tiles=shape)


def experts_as_on_a_cpu(kind: str, layout: gguf_weights.Layout) -> None:
    for number in (1, 300):
        chosen = torch.zeros(number, 4, dtype=torch.int32)
        shape = expert_tiles(4 * number, 32, batch_invariant=True, packed=True, exact=True)
        placed = placing.place_rows(chosen, 32, shape.rows)
        up = gguf_weights.empty(layout, 32 * 2 * 256, 256, CPU)
        down = gguf_weights.empty(layout, 32 * 256, 256, CPU)
        bias = rows(32, 512, dtype=FP32) if kind == "clamped_swiglu" else None
        x = row_levels.row_levels(rows(number, 256))
        both = level_products.expert_levels(x, up, 32, placed, bias, tiles=shape)
        inner = row_levels.gate_levels(both, kind)
        level_products.expert_levels(inner, down, 32, placed, tiles=shape)


def fp8_experts(groups: int) -> None:
    """With a scale per output, and per block; of as many rows as `experts`."""
    count, active = 128, 8
    for number in (1, 2, 300, 256 * count // active):
        chosen = torch.zeros(number, active, dtype=torch.int32)
        shape = expert_tiles(chosen.numel(), count, batch_invariant=False)
        placed = placing.place_rows(chosen, count, shape.rows)
        levels = rows(count, 256, 128 * groups, dtype=torch.float8_e4m3fn)
        for scales in (rows(count, 256, 1, dtype=FP32), rows(count, 256, groups, dtype=FP32)):
            for pairs in (number, number * active):
                x = rows(pairs, 128 * groups)
                bias = None if pairs == number else rows(count, 256)
                fp8_products.expert_fp8(
                    x, levels, scales, placed, bias, tiles=EXPERTS_FP8[shape.rows]
                )


EXPERT_CALLS: dict[str, Callable[[], object]] = {
    "experts": experts,
    "experts-in-groups": partial(experts, 256, sigmoid=True, groups=8, active_groups=4),
    "experts-fp8": partial(fp8_experts, 2),
    "experts-mxfp4": partial(packed_experts, gguf_weights.Layout(8, factors="float32", unit=32)),
    "levels-q4_k": partial(
        experts_as_on_a_cpu, "silu", gguf_weights.Layout(4, minima=True, factors="uint8")
    ),
    "levels-q6_k": partial(
        experts_as_on_a_cpu,
        "gelu_tanh",
        gguf_weights.Layout(6, offset=32, group=16, factors="int8"),
    ),
    "levels-q8_0": partial(experts_as_on_a_cpu, "relu2", gguf_weights.Layout(8)),
    "levels-mxfp4": partial(
        experts_as_on_a_cpu,
        "clamped_swiglu",
        gguf_weights.Layout(4, e2m1=True, factors="uint8", unit=0),
    ),
    "experts-q4_k": partial(packed_experts, gguf_weights.Layout(4, minima=True, factors="uint8")),
}
