"""The product of one group of 32 inputs with GGUF-quantised weights."""

from __future__ import annotations

import triton
import triton.language as tl

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
    column,
    mask,
    outputs,
    GROUP: tl.constexpr,
    UNIT: tl.constexpr,
    E2M1: tl.constexpr,
):
    """Returns scales or minima of a group of GROUP inputs, [COLUMNS] float32, exact."""
    place = column.to(tl.int64) + group * outputs
    value = tl.load(values + place, mask=mask, other=0)
    if E2M1:
        value = half_of_bytes(value, GROUP)
    value = value.to(tl.float32)
    if UNIT > 0:
        place = column.to(tl.int64) + group * GROUP // UNIT * outputs
        value *= tl.load(units + place, mask=mask, other=0).to(tl.float32)
    return value


@triton.jit
def _two_factors(
    values,
    units,
    group,
    column,
    mask,
    outputs,
    GROUP: tl.constexpr,
    UNIT: tl.constexpr,
    E2M1: tl.constexpr,
):
    """Returns the factors of the first and of the latter 16 of 32 inputs."""
    if GROUP == 16:
        first = _factor(values, units, 2 * group, column, mask, outputs, GROUP, UNIT, E2M1)
        second = _factor(values, units, 2 * group + 1, column, mask, outputs, GROUP, UNIT, E2M1)
    else:
        first = _factor(values, units, group, column, mask, outputs, GROUP, UNIT, E2M1)
        second = first
    return first, second


@triton.jit
def group_factors(
    scales,
    units,
    minima,
    unit_minima,
    group,
    end,
    column,
    in_columns,
    outputs,
    GROUP: tl.constexpr,
    MINIMA: tl.constexpr,
    UNIT: tl.constexpr,
    E2M1: tl.constexpr,
):
    """Returns for 32 inputs (scale, scale of the latter 16, minimum, minimum of the latter 16). The
    second of each counts if GROUP is 16, and minima if there are any. From group `end` on, where
    products are 0, all are finite."""
    mask = in_columns & (group < end)
    scale, second = _two_factors(scales, units, group, column, mask, outputs, GROUP, UNIT, E2M1)
    least, second_least = scale, second
    if MINIMA:
        least, second_least = _two_factors(
            minima, unit_minima, group, column, mask, outputs, GROUP, UNIT, E2M1
        )
    return scale, second, least, second_least


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
    """Returns acc + the product of 32 inputs; from group `end` on, acc."""
    held = group < end
    dtype: tl.constexpr = x_place.dtype.element_ty
    none = tl.zeros(acc.shape, tl.float32)
    own = in_columns & held
    low, upper = level_halves(levels, high, group, column, own, outputs, BITS, OFFSET, E2M1)
    mask = in_rows[:, None] & held
    some = tl.trans(tl.load(x_place + group * 32, mask=mask, other=0.0))
    more = tl.trans(tl.load(x_place + group * 32 + 16, mask=mask, other=0.0))
    if GROUP == 32:
        product = tile_dot(_whole(low, dtype), some, none)
        product = tile_dot(_whole(upper, dtype), more, product)
        acc = tl.fma(product, tl.broadcast_to(scale[:, None], product.shape), acc)
    else:
        product = tile_dot(_whole(low, dtype), some, none)
        acc = tl.fma(product, tl.broadcast_to(scale[:, None], product.shape), acc)
        product = tile_dot(_whole(upper, dtype), more, none)
        acc = tl.fma(product, tl.broadcast_to(second_scale[:, None], product.shape), acc)
    if MINIMA:
        ones = round_to(tl.full([acc.shape[0], 16], 1.0, tl.float32), dtype)
        if GROUP == 32:
            total = tile_dot(ones, more, tile_dot(ones, some, none))
            acc = tl.fma(total, tl.broadcast_to(least[:, None], total.shape), acc)
        else:
            total = tile_dot(ones, some, none)
            acc = tl.fma(total, tl.broadcast_to(least[:, None], total.shape), acc)
            total = tile_dot(ones, more, none)
            acc = tl.fma(total, tl.broadcast_to(second_least[:, None], total.shape), acc)
    return acc
