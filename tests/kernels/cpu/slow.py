"""What a product computes, in float64, from the definition of each kind."""

from __future__ import annotations

import numpy as np

from penstock_kernels.cpu import library
from penstock_kernels.cpu.matrix import MatrixKind
from tests.kernels.cpu.sources import Source

GROUP = 32
SUPER_GROUP = 256
K_QUANTS = (MatrixKind.U4K, MatrixKind.U5K, MatrixKind.S6K)
"""Kinds of which some instruction sets multiply a super-group's inputs as whole numbers."""
MULTIPLES = np.array([0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 16], np.float32)
"""Whole numbers up to 16 of two bits at most."""


def quantised(x: np.ndarray, group: int = GROUP) -> np.ndarray:
    """x through signed bytes in groups. [rows, width] float32 -> the same in float64.

    Peak, its inverse and the levels are float32 arithmetic, as the kernels are specified: a level
    must not differ by a tie.
    """
    rows, width = x.shape
    padded = np.zeros((rows, -(-width // group) * group), dtype=np.float32)
    padded[:, :width] = x
    groups = padded.reshape(rows, -1, group)
    peak = np.abs(groups).max(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        inverse = np.where(peak > 0, np.float32(127) / peak, np.float32(0)).astype(np.float32)
    levels = np.rint(groups * inverse)
    scale = peak / np.float32(127)
    return (levels.astype(np.float64) * scale).reshape(rows, -1)[:, :width]


def quantised_by_super_groups(x: np.ndarray) -> np.ndarray:
    """x through signed bytes in groups of 256, and again what that leaves where one scale is too
    coarse: where its square is four times the mean square of the groups' own.

    width: a multiple of 256."""
    groups = np.abs(x.reshape(len(x), -1, SUPER_GROUP // GROUP, GROUP)).max(-1)
    squares, peak = np.zeros(groups.shape[:2], np.float32), groups.max(-1)
    with np.errstate(over="ignore"):
        for group in range(groups.shape[2]):
            squares += groups[..., group] * groups[..., group]
        coarse = np.float32(8) * peak * peak > np.float32(4) * squares
    first = quantised(x, SUPER_GROUP)
    rest = x - first.astype(np.float32)
    return first + np.where(np.repeat(coarse, SUPER_GROUP, 1), quantised(rest, SUPER_GROUP), 0.0)


def quantised_by_multiples(x: np.ndarray) -> np.ndarray:
    """x through signed bytes in groups of 32, whose scales are multiples of a sixteenth of the
    largest one of a super-group; the levels of 16 inputs come to 1,023 at most.

    width: a multiple of 256."""
    groups = x.reshape(len(x), -1, SUPER_GROUP // GROUP, GROUP)
    levels, scales = _levels_by_multiples(groups, np.abs(groups).max(-1))
    halves = np.abs(levels).reshape(*levels.shape[:3], 2, 16).sum(-1)
    too_many = (halves > 1023).any((2, 3))
    lesser, lesser_scales = _levels_by_multiples(groups, _peaks_of_less(groups))
    levels[too_many], scales[too_many] = lesser[too_many], lesser_scales[too_many]
    return (levels.astype(np.float64) * scales[..., None]).reshape(x.shape)


def _levels_by_multiples(groups: np.ndarray, peaks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """groups: [rows, super-groups, 8, 32].  peaks: [rows, super-groups, 8], what is level 127.
    Returns levels of groups' shape, and scales in float64, of that of peaks."""
    one, levels_of = np.float32(1), np.float32(127)
    top = peaks.max(-1, keepdims=True)
    safe = np.where(top > 0, top, one)
    sixteenths = np.ceil(np.minimum(peaks * (np.float32(16) / safe), np.float32(16)))
    times = MULTIPLES[np.searchsorted(MULTIPLES, np.maximum(sixteenths, one))]
    inverse = levels_of / safe * (np.float32(16) / times)
    scale = (top / levels_of / np.float32(16)).astype(np.float64)
    return np.rint(groups * inverse[..., None]), times * scale


def _peaks_of_less(groups: np.ndarray) -> np.ndarray:
    """What becomes level 127 of groups [.., 32] where levels are fewer, so that 16 of them come to
    1,023 at most: the largest number is a whole level."""
    sums = np.abs(groups).reshape(*groups.shape[:-1], 2, 16)
    with np.errstate(over="ignore"):
        for lanes in (8, 4, 2, 1):  # The order of the kernels' own sums.
            sums = sums[..., :lanes] + sums[..., lanes:]
    peaks, most = np.abs(groups).max(-1), sums[..., 0].max(-1)
    share = peaks / np.where(most > 0, most, np.float32(1))
    level = np.float32(1015) * np.maximum(share, np.float32(1 / 16))
    return peaks * (np.float32(127) / np.where(level < 127, np.floor(level), np.float32(127)))


def int8_heads(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each vector as signed bytes with a scale of its own. [.., dim] -> levels of that shape and
    scales [.., 1], both float64.  The arithmetic is float32, as in `quantised`."""
    x = x.astype(np.float32)
    peak = np.abs(x).max(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        inverse = np.where(peak > 0, np.float32(127) / peak, np.float32(0)).astype(np.float32)
    return np.rint(x * inverse).astype(np.float64), (peak / np.float32(127)).astype(np.float64)


def bfloat16(x: np.ndarray) -> np.ndarray:
    """Rounded to nearest even, as float32."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return (rounded << np.uint32(16)).view(np.float32)


def weights_as(source: Source, kind: MatrixKind | None) -> np.ndarray:
    """The values that a packed matrix holds. float64."""
    if kind is MatrixKind.BF16:
        return bfloat16(source.values).astype(np.float64)
    if kind is MatrixKind.S8H:
        return int8_weights(source.values)
    return source.values.astype(np.float64)


def int8_weights(values: np.ndarray) -> np.ndarray:
    """Plain numbers as bytes in groups of 32 with a float16 scale: largest magnitude / 127."""
    rows, width = values.shape
    padded = np.zeros((rows, -(-width // GROUP) * GROUP), dtype=np.float32)
    padded[:, :width] = values
    groups = padded.reshape(rows, -1, GROUP)
    peak = np.abs(groups).max(-1, keepdims=True)
    scale = (peak / np.float32(127)).astype(np.float16).astype(np.float32)
    safe = np.where(scale > 0, scale, np.float32(1))
    levels = np.where(scale > 0, np.clip(np.rint(groups / safe), -127, 127), 0)
    return (levels.astype(np.float64) * scale).reshape(rows, -1)[:, :width]


def input_as(x: np.ndarray, kind: MatrixKind, two_parts: bool = False) -> np.ndarray:
    """The activations that a matrix of this kind meets. float64."""
    if two_parts:
        first = input_as(x, kind)
        return first + input_as(x - first.astype(np.float32), kind)
    if kind is MatrixKind.F32:
        return x.astype(np.float64)
    if kind is MatrixKind.BF16:
        return bfloat16(x).astype(np.float64)
    if kind in K_QUANTS and library.instruction_set() == "amx":
        return quantised_by_super_groups(x)
    if kind in K_QUANTS and library.instruction_set() == "avx512":
        return quantised_by_multiples(x)
    return quantised(x)


def product(
    x: np.ndarray, weights: np.ndarray, kind: MatrixKind, two_parts: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """(x @ weights.T in float64, a bound of what float32 sums may differ from it).

    The bound counts the roundings of a sum of so many terms, as if all went one way.
    """
    given = input_as(x, kind, two_parts)
    magnitude = np.abs(given) @ np.abs(weights).T
    if kind.name.startswith("U"):
        # scale * level and minimum are summed apart, and can be larger than their sum.
        magnitude = magnitude + np.abs(given).sum(-1, keepdims=True) * np.abs(weights).max(-1) * 2
    roundings = 8 + x.shape[1] / (1 if kind in (MatrixKind.F32, MatrixKind.BF16) else GROUP / 2)
    return given @ weights.T, magnitude * roundings * 2.0**-24 + 1e-30
