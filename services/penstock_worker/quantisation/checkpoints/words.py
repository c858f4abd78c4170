"""Levels of 4 or 8 bits that are packed into 32-bit words, the first in the lowest bits."""

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
    out = np.empty((packed.shape[0], packed.shape[1], 2), dtype=np.uint8)
    np.bitwise_and(packed, 15, out=out[:, :, 0])
    np.right_shift(packed, 4, out=out[:, :, 1])
    return out.reshape(packed.shape[0], -1)


def along_rows(words: np.ndarray, bits: int, rows: range, columns: range) -> np.ndarray:
    """Unpacks a part of levels that are packed along the second dimension: [rows, columns] uint8 of
    words [all rows, words]."""
    per = 32 // bits
    first, last = columns.start // per, -(-columns.stop // per)
    found = unpacked(words[rows.start : rows.stop, first:last], bits)
    return found[:, columns.start - first * per : columns.stop - first * per]


def across_rows(words: np.ndarray, bits: int, rows: range, columns: range) -> np.ndarray:
    """Unpacks as along_rows does, but levels that are packed along the first dimension: words
    [words, all columns]."""
    return along_rows(words.T, bits, columns, rows).T
