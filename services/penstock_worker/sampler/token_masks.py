"""Bitmasks of token ids, in the layout that the CUDA kernels read: id i is bit i % 32 of word
i // 32."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

_WORD = 32


def words_of(ids: np.ndarray) -> np.ndarray:
    """Packs [vocab] bool into [ceil(vocab / 32)] int32."""
    words = np.zeros(-(-len(ids) // _WORD), np.int32)
    packed = np.packbits(ids, bitorder="little")
    words.view(np.uint8)[: len(packed)] = packed
    return words


@lru_cache(maxsize=4)
def everything(vocab: int) -> np.ndarray:
    """Returns the mask of all ids, read-only."""
    return words_of(np.ones(vocab, dtype=bool))


def without(words: np.ndarray, ids: Sequence[int] | np.ndarray, vocab: int) -> np.ndarray:
    """Returns a copy of the mask without `ids`. Ids outside of the vocabulary are ignored."""
    left = words.copy()
    if not len(ids):
        return left
    given = np.asarray(ids, dtype=np.int64)
    given = given[(given >= 0) & (given < vocab)]
    bits = np.left_shift(np.uint32(1), (given % _WORD).astype(np.uint32))
    np.bitwise_and.at(left.view(np.uint32), given // _WORD, ~bits)
    return left
