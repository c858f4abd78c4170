"""Rows as signed bytes in groups of 32, with the bits of the `cpu` kernels (csrc/activations.h)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.early import await_earlier, launched_early
from penstock_kernels.triton.rowwise.cpu_activations import CPU_KINDS, FUSED, gated_as_cpu
from penstock_kernels.triton.tiles import LEVEL_GROUPS, LEVEL_WARPS

GROUP = 32
"""Inputs that share a scale."""

_MOST = tl.constexpr(3.4028234663852886e38)
_SMALLEST_SCALE = tl.constexpr(2.938735877055719e-39)  # 1 / _MOST, which is subnormal
_ROUND_MAGIC = tl.constexpr(12582912.0)


@dataclass(frozen=True)
class RowLevels:
    """Rows, [rows, inputs], rounded to bytes. What a group holds that isn't finite makes its scale
    NaN, and with it the row's products."""

    levels: Tensor
    """[rows, inputs] int8, from -127 to 127."""
    scales: Tensor
    """[rows, inputs / 32] float32."""
    sums: Tensor
    """Scale times the sum of each 16 levels, and of each 32, [rows, inputs / 32, 3] float32."""

    @property
    def rows(self) -> int:
        return self.levels.shape[0]


@triton.jit
def _store_levels(x, row, group, in_row, inputs, levels, scales, sums):
    """`x`: [groups, 32] float32."""
    magnitude = tl.abs(x)
    broken = tl.max((x - x != 0.0).to(tl.int32), 1) > 0
    peak = tl.max(tl.where(broken[:, None], 0.0, magnitude), 1)
    inverse = tl.div_rn(tl.full(peak.shape, 127.0, tl.float32), tl.where(peak > 0, peak, 1.0))
    tiny = inverse > _MOST
    inverse = tl.where(tiny, _MOST, tl.where(peak > 0, inverse, 0.0))
    scale = tl.div_rn(peak, tl.full(peak.shape, 127.0, tl.float32))
    scale = tl.where(tiny, _SMALLEST_SCALE, scale)
    scale = tl.where(broken, float("nan"), scale)
    scaled = tl.where(broken[:, None], 0.0, x) * inverse[:, None]
    level = ((scaled + _ROUND_MAGIC) - _ROUND_MAGIC).to(tl.int32)
    input = tl.arange(0, 32)
    first = tl.sum(tl.where(input[None, :] < 16, level, 0), 1)
    second = tl.sum(tl.where(input[None, :] < 16, 0, level), 1)
    place = levels + row * inputs + group[:, None] * 32 + input[None, :]
    tl.store(place, level.to(tl.int8), mask=in_row[:, None])
    at = row * (inputs // 32) + group
    tl.store(scales + at, scale, mask=in_row)
    tl.store(sums + at * 3, scale * first.to(tl.float32), mask=in_row)
    tl.store(sums + at * 3 + 1, scale * second.to(tl.float32), mask=in_row)
    tl.store(sums + at * 3 + 2, scale * (first + second).to(tl.float32), mask=in_row)


@triton.jit
def _row_levels(
    x, levels, scales, sums, inputs, x_row, GROUPS: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    await_earlier(EARLY)
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    in_row = group < inputs // 32
    place = x + row * x_row + group[:, None] * 32 + tl.arange(0, 32)[None, :]
    held = tl.load(place, mask=in_row[:, None], other=0.0).to(tl.float32)
    _store_levels(held, row, group, in_row, inputs, levels, scales, sums)


@triton.jit
def _gate_levels(
    gate_up,
    levels,
    scales,
    sums,
    inputs,
    KIND: tl.constexpr,
    GROUPS: tl.constexpr,
    EARLY: tl.constexpr,
):
    await_earlier(EARLY)
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    in_row = group < inputs // 32
    place = gate_up + row * 2 * inputs + group[:, None] * 32 + tl.arange(0, 32)[None, :]
    gate = tl.load(place, mask=in_row[:, None], other=0.0)
    up = tl.load(place + inputs, mask=in_row[:, None], other=0.0)
    held = gated_as_cpu(gate, up, KIND)
    _store_levels(held, row, group, in_row, inputs, levels, scales, sums)


def row_levels(x: Tensor) -> RowLevels:
    """Rounds rows, [rows, inputs] of any float dtype, to bytes; they may be strided. Raises
    ValueError for inputs that aren't a multiple of 32."""
    out = _empty(x.shape[0], x.shape[1], x.device)
    if out.rows:
        _row_levels[_grid(out)](
            x=x,
            **vars(out),
            inputs=x.shape[1],
            x_row=x.stride(0),
            GROUPS=LEVEL_GROUPS,
            num_warps=LEVEL_WARPS,
            enable_fp_fusion=FUSED,
            **launched_early(x.device),
        )
    return out


def gate_levels(gate_up: Tensor, kind: str) -> RowLevels:
    """Rounds activation(gate) * up to bytes.

    `gate_up`: [rows, 2 * inputs] float32, contiguous, the gate in the first half. `kind`: of
    CPU_KINDS. Raises ValueError for another kind, and for inputs that aren't a multiple of 32.
    """
    if kind not in CPU_KINDS:
        raise ValueError(f"activation {kind!r}; those with the bits of a CPU are {CPU_KINDS}")
    inputs = gate_up.shape[1] // 2
    out = _empty(gate_up.shape[0], inputs, gate_up.device)
    if out.rows:
        _gate_levels[_grid(out)](
            gate_up=gate_up,
            **vars(out),
            inputs=inputs,
            KIND=kind,
            GROUPS=LEVEL_GROUPS,
            num_warps=LEVEL_WARPS,
            enable_fp_fusion=FUSED,
            **launched_early(gate_up.device),
        )
    return out


def _empty(rows: int, inputs: int, device: torch.device) -> RowLevels:
    if inputs % GROUP:
        raise ValueError(f"rows are {inputs} wide; levels need a multiple of {GROUP}")
    return RowLevels(
        torch.empty(rows, inputs, dtype=torch.int8, device=device),
        torch.empty(rows, inputs // GROUP, dtype=torch.float32, device=device),
        torch.empty(rows, inputs // GROUP, 3, dtype=torch.float32, device=device),
    )


def _grid(out: RowLevels) -> tuple[int, int]:
    return out.rows, triton.cdiv(out.scales.shape[1], LEVEL_GROUPS)
