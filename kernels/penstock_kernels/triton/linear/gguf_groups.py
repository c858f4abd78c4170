"""The product of one group of 32 inputs with GGUF-quantised weights."""

from __future__ import annotations

import triton
import triton.language as tl

from penstock_kernels.triton.linear.nibbles import nibble_levels, plane_levels
from penstock_kernels.triton.rounding import INTERPRETED, round_to, tile_dot


@triton.jit
def _whole(level, dtype: tl.constexpr):
    """Converts int8 integers to a float dtype that can represent them."""
    if INTERPRETED:
        return round_to(level.to(tl.float32), dtype)
    else:
        return level.to(dtype)


@triton.jit
def twice_e2m1(code):
    """Maps 4 bits to twice the number of type e2m1 that they are, of the same integer dtype."""
    magnitude = code & 7
    steps = tl.maximum(magnitude >> 1, 1) - 1
    whole = tl.where(magnitude < 2, magnitude, (2 | magnitude & 1) << steps)
    return tl.where(code < 8, whole, -whole)


@triton.jit
def half_of_bytes(scale, GROUP: tl.constexpr):
    """Maps uint8 to half the number that it is, float32, exact: e4m3 without a sign, or e8m0."""
    if GROUP == 16:
        # A float16 with these bits has an exponent that is biased by eight more.
        bits = (scale.to(tl.int16) << 7).to(tl.float16, bitcast=True)
        return bits.to(tl.float32) * 128
    whole = scale.to(tl.int32)
    # Below 2^-126, numbers are subnormal.
    bits = tl.where(whole < 2, 0x200000 << tl.minimum(whole, 1), (whole - 1) << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def level_halves(
    levels,
    high,
    group,
    column,
    in_columns,
    outputs,
    BITS: tl.constexpr,
    OFFSET: tl.constexpr,
    E2M1: tl.constexpr,
):
    """Returns the two halves of a group's levels, each [COLUMNS, 16] int8."""
    half = tl.arange(0, 16)
    place = column.to(tl.int64) + group * outputs
    mask = in_columns[:, None]
    if BITS == 8:
        at = levels + place[:, None] * 32 + half[None, :]
        first = tl.load(at, mask=mask, other=0)
        second = tl.load(at + 16, mask=mask, other=0)
    else:
        raw = tl.load(levels + place[:, None] * 16 + half[None, :], mask=mask, other=0)
        first = raw & 15
        second = raw >> 4
        if BITS > 4:
            PLANES: tl.constexpr = BITS - 4
            for plane in tl.static_range(PLANES):
                bits = tl.load(high + place * PLANES + plane, mask=in_columns, other=0)[:, None]
                first |= (((bits >> half[None, :]) & 1) << (4 + plane)).to(tl.uint8)
                second |= (((bits >> (half + 16)[None, :]) & 1) << (4 + plane)).to(tl.uint8)
        first = first.to(tl.int8, bitcast=True) - OFFSET
        second = second.to(tl.int8, bitcast=True) - OFFSET
        if E2M1:
            first = twice_e2m1(first)
            second = twice_e2m1(second)
    return first.to(tl.int8), second.to(tl.int8)


@triton.jit
def _factor(
    values,
    units,
    group,
    unit,
    column,
    outputs,
    UNIT: tl.constexpr,
    E2M1: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Returns scales or minima of a group of GROUP inputs, [COLUMNS] float32, exact. `unit`: the
    number of their unit."""
    value = tl.load(values + column.to(tl.int64) + group * outputs)
    if E2M1:
        value = half_of_bytes(value, GROUP)
    value = value.to(tl.float32)
    if UNIT > 0:
        value *= tl.load(units + column.to(tl.int64) + unit * outputs).to(tl.float32)
    return value


@triton.jit
def _two_factors(
    values,
    units,
    group,
    unit,
    column,
    outputs,
    GROUP: tl.constexpr,
    UNIT: tl.constexpr,
    E2M1: tl.constexpr,
):
    """Returns the factors of the first and of the latter 16 of 32 inputs."""
    if GROUP == 16:
        first = _factor(values, units, 2 * group, unit, column, outputs, UNIT, E2M1, GROUP)
        second = _factor(values, units, 2 * group + 1, unit, column, outputs, UNIT, E2M1, GROUP)
    else:
        first = _factor(values, units, group, unit, column, outputs, UNIT, E2M1, GROUP)
        second = first
    return first, second


@triton.jit
def group_factors(
    scales,
    units,
    minima,
    unit_minima,
    group,
    within,
    end,
    column,
    outputs,
    GROUP: tl.constexpr,
    MINIMA: tl.constexpr,
    UNIT: tl.constexpr,
    E2M1: tl.constexpr,
):
    """Returns for 32 inputs (scale, scale of the latter 16, minimum, minimum of the latter 16). The
    second of each counts if GROUP is 16, and minima if there are any. From group `end` on, where
    products are 0, they are those of the group before it.

    `column`: [COLUMNS], those of outputs that exist: then no load has a mask.
    `within`: a group that has the same unit."""
    group = tl.minimum(group, end - 1)
    unit = group
    if UNIT > 0:
        unit = tl.minimum(within, end - 1) * 32 // UNIT
    scale, second = _two_factors(scales, units, group, unit, column, outputs, GROUP, UNIT, E2M1)
    least, second_least = scale, second
    if MINIMA:
        least, second_least = _two_factors(
            minima, unit_minima, group, unit, column, outputs, GROUP, UNIT, E2M1
        )
    return scale, second, least, second_least


@triton.jit
def _level_operands(
    levels,
    high,
    group,
    column,
    mask,
    outputs,
    dtype: tl.constexpr,
    BITS: tl.constexpr,
    OFFSET: tl.constexpr,
    E2M1: tl.constexpr,
):
    """Returns the two halves of a group's levels, each [COLUMNS, 16] of `dtype`."""
    if BITS == 4 and not E2M1:
        place = (column.to(tl.int64) + group * outputs)[:, None] * 16 + tl.arange(0, 16)[None, :]
        raw = tl.load(levels + place, mask=mask[:, None], other=0)
        offset = tl.full([column.shape[0]], OFFSET, tl.float32)
        low, upper = nibble_levels(raw, offset, dtype)
    elif (BITS == 5 or BITS == 6) and dtype == tl.bfloat16:
        group_place = column.to(tl.int64) + group * outputs
        place = group_place[:, None] * 16 + tl.arange(0, 16)[None, :]
        raw = tl.load(levels + place, mask=mask[:, None], other=0)
        first = tl.load(high + group_place * (BITS - 4), mask=mask, other=0)
        second = first
        if BITS == 6:
            second = tl.load(high + group_place * 2 + 1, mask=mask, other=0)
            second = (second << 1) | ((second >> 31) & 1)
        offset = tl.full([column.shape[0]], OFFSET, tl.float32)
        low, upper = plane_levels(raw, first, second, offset, BITS - 4)
    else:
        low, upper = level_halves(levels, high, group, column, mask, outputs, BITS, OFFSET, E2M1)
        low, upper = _whole(low, dtype), _whole(upper, dtype)
    return low, upper


@triton.jit
def add_group(
    acc,
    x_place,
    levels,
    high,
    scale,
    second_scale,
    least,
    second_least,
    sums,
    sum_rows,
    group,
    end,
    in_rows,
    column,
    in_columns,
    outputs,
    BITS: tl.constexpr,
    OFFSET: tl.constexpr,
    GROUP: tl.constexpr,
    MINIMA: tl.constexpr,
    E2M1: tl.constexpr,
):
    """Returns acc + the product of 32 inputs; from group `end` on, acc.

    `sums`: where those of the rows' first inputs are, [ROWS] pointers into a result of group_sums,
    whose groups lie `sum_rows` numbers apart. Used if MINIMA."""
    held = group < end
    dtype: tl.constexpr = x_place.dtype.element_ty
    none = tl.zeros(acc.shape, tl.float32)
    own = in_columns & held
    low, upper = _level_operands(
        levels, high, group, column, own, outputs, dtype, BITS, OFFSET, E2M1
    )
    mask = in_rows[:, None] & held
    some = tl.trans(tl.load(x_place + group * 32, mask=mask, other=0.0))
    more = tl.trans(tl.load(x_place + group * 32 + 16, mask=mask, other=0.0))
    if GROUP == 32:
        product = tile_dot(upper, more, tile_dot(low, some, none))
        acc = _add_scaled(acc, product, scale)
    else:
        acc = _add_scaled(acc, tile_dot(low, some, none), scale)
        acc = _add_scaled(acc, tile_dot(upper, more, none), second_scale)
    if MINIMA:
        PER: tl.constexpr = 32 // GROUP
        place = sums + group * PER * sum_rows
        total = tl.load(place, mask=in_rows & held, other=0.0)
        acc = _add_scaled(acc, tl.broadcast_to(total[None, :], acc.shape), least)
        if GROUP == 16:
            total = tl.load(place + sum_rows, mask=in_rows & held, other=0.0)
            acc = _add_scaled(acc, tl.broadcast_to(total[None, :], acc.shape), second_least)
    return acc


@triton.jit
def _add_scaled(acc, product, factor):
    """`factor`: [COLUMNS]."""
    return tl.fma(product, tl.broadcast_to(factor[:, None], product.shape), acc)
