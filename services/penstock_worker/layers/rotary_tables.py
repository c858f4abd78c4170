"""Tables of rotary embeddings (Su et al., 2021), in numpy.

Powers, cosines and sines are computed in float64 and rounded once to float32. So they have the same
bits on every processor and with every version of the libraries, and a model of the CPU kernels
needs no other library for them. What is between these is float32, as where models are trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from penstock.model.rope_spec import RopeScaling, RopeSpec
from penstock_worker.weights.names import ROPE_FACTORS
from penstock_worker.weights.weights import Weights

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]

Divisors = Callable[[int], np.ndarray]
"""Gives so many numbers of the checkpoint, float32, by which frequencies are divided."""

_ROWS = 4096
"""Positions computed at a time, which bounds what is held in float64."""


class AngleTables(NamedTuple):
    """For every position that may occur."""

    cos: Floats
    """[positions, dims / 2] float32."""
    sin: Floats
    """[positions, dims / 2] float32."""
    query_factors: Floats | None
    """[positions] float32: what queries are multiplied by; None: nothing."""


def rotary_tables(spec: RopeSpec, positions: int, divisors: Divisors) -> AngleTables:
    """divisors: for frequencies that the checkpoint scales."""
    frequencies = _scaled(spec, positions, divisors)
    factor = 1.0 if spec.scaling is None else spec.scaling.attention_factor
    tables = np.empty((2, positions, len(frequencies)), dtype=np.float32)
    for start in range(0, positions, _ROWS):
        rows = np.arange(start, min(start + _ROWS, positions), dtype=np.float32)
        angles = (rows[:, None] * frequencies).astype(np.float64)
        for table, function in zip(tables, (np.cos, np.sin), strict=True):
            table[start : start + len(rows)] = function(angles)
    if factor != 1.0:
        tables *= np.float32(factor)
    return AngleTables(tables[0], tables[1], _query_factors(spec, positions))


def tables_of(spec: RopeSpec, weights: Weights, positions: int) -> AngleTables:
    """Returns a model's tables for so many positions."""
    return rotary_tables(spec, positions, lambda count: weights.array(ROPE_FACTORS, (count,)))


def frequencies_of(dims: int, theta: float) -> Floats:
    """Returns theta^(-2i / dims) for i < dims / 2, [dims / 2] float32."""
    exponents = np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims)
    powers = np.power(float(theta), exponents.astype(np.float64)).astype(np.float32)
    return np.float32(1) / powers


def _query_factors(spec: RopeSpec, positions: int) -> Floats | None:
    if not spec.query_growth:
        return None
    times = np.arange(positions, dtype=np.float32) + np.float32(spec.query_growth_first)
    times = times // np.float32(spec.query_growth_length)
    return (1.0 + spec.query_growth * np.log(1.0 + times.astype(np.float64))).astype(np.float32)


def _scaled(spec: RopeSpec, positions: int, divisors: Divisors) -> Floats:
    plain = frequencies_of(spec.dims, spec.theta)
    scaling = spec.scaling
    if scaling is None:
        return plain
    match scaling.kind:
        case "linear":  # Position interpolation (Chen et al., 2023).
            return plain / np.float32(scaling.factor)
        case "llama3":
            return llama3_scaled(plain, scaling)
        case "yarn":
            return yarn_scaled(plain, spec.theta, scaling)
        case "longrope":
            # By the longest that a request may get, not by a request's length: a longer request's
            # first tokens would otherwise differ from a shorter one's.
            beyond = positions > scaling.original_max_position
            factors = scaling.long_factors if beyond else scaling.short_factors
            return np.divide(plain, np.array(factors, dtype=np.float32), dtype=np.float32)
        case "proportional":
            kept = np.arange(spec.dims // 2) < scaling.kept
            return (plain / np.float32(scaling.factor) * kept).astype(np.float32)
        case "precomputed":
            count = spec.dims // 2
            given: Floats = divisors(scaling.kept or count)[:count]
            return plain / given


def llama3_scaled(frequencies: Floats, scaling: RopeScaling) -> Floats:
    """Returns frequencies, [n] float32, in the bands of the Llama 3.1 release.

    A frequency whose wavelength exceeds original/low is divided by factor; below original/high it
    stays; in between the two are blended linearly in original/wavelength. Where both bounds are one
    (Llama 4), nothing is in between.
    """
    low, high = np.float32(scaling.low_freq_factor), np.float32(scaling.high_freq_factor)
    turns = np.float32(scaling.original_max_position) * frequencies / np.float32(2 * math.pi)
    divided = frequencies / np.float32(scaling.factor)
    if low == high:
        return np.where(turns < low, divided, frequencies)
    blend = (turns - low) / (high - low)
    blended = (1 - blend) * frequencies / np.float32(scaling.factor) + blend * frequencies
    return np.where(turns > high, frequencies, np.where(turns < low, divided, blended))


def yarn_scaled(frequencies: Floats, theta: float, scaling: RopeScaling) -> Floats:
    """Returns frequencies, [n] float32, interpolated by parts (Peng et al., "YaRN", 2023).

    A frequency that turns more than beta_fast times within the original context stays; one that
    turns less than beta_slow times is divided by factor; between these two dimensions the two are
    blended linearly. `truncate`: their bounds are rounded to whole dimensions, outwards.
    """
    dims = 2 * len(frequencies)

    def dimension(turns: float) -> float:
        ratio = scaling.original_max_position / (turns * 2 * math.pi)
        return dims * math.log(ratio) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    if low == high:
        high += 0.001
    places = (np.arange(dims // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    blend = places.clip(0, 1)
    return frequencies / np.float32(scaling.factor) * blend + frequencies * (1 - blend)
