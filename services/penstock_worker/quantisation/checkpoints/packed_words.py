"""Levels of 2 to 8 bits that are packed into 32-bit words, the first in the lowest bits. 32 levels
fill as many words as they have bits."""

from __future__ import annotations

import numpy as np


def words_of(count: int, bits: int) -> int:
    """Returns how many words hold `count` levels."""
    return -(-count * bits // 32)


def unpacked(words: np.ndarray, bits: int) -> np.ndarray:
    """Unpacks 32-bit integers [rows, words] to uint8 [rows, words * 32 / bits]. `words` need be
    neither aligned nor contiguous."""
    packed = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return packed
    if bits in _SHIFTS:
        return ((packed[:, :, None] >> _SHIFTS[bits]) & ((1 << bits) - 1)).reshape(len(packed), -1)
    # What is left of the last word holds no level.
    stream = np.unpackbits(packed, axis=1, bitorder="little")
    each = stream[:, : stream.shape[1] // bits * bits].reshape(len(packed), -1, bits)
    return np.packbits(each, axis=2, bitorder="little")[:, :, 0]


_SHIFTS = {bits: np.arange(0, 8, bits, dtype=np.uint8) for bits in (2, 4)}
"""The places of a byte's levels, of bits that divide a byte."""


def along_rows(words: np.ndarray, bits: int, rows: range, columns: range) -> np.ndarray:
    """Unpacks a part of levels that are packed along the second dimension: [rows, columns] uint8 of
    words [all rows, words]."""
    # The fewest words that begin and end with a level.
    step, per = (1, 32 // bits) if 32 % bits == 0 else (bits, 32)
    first, last = columns.start // per, -(-columns.stop // per)
    found = unpacked(words[rows.start : rows.stop, first * step : last * step], bits)
    return found[:, columns.start - first * per : columns.stop - first * per]


def across_rows(words: np.ndarray, bits: int, rows: range, columns: range) -> np.ndarray:
    """Unpacks as along_rows does, but levels that are packed along the first dimension: words
    [words, all columns]."""
    return along_rows(words.T, bits, columns, rows).T
