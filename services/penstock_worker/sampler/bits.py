"""Sets of token ids with a bit each, as the CUDA kernels read them: bit i % 32 of word i // 32."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

_WORD = 32


def words_of(ids: np.ndarray) -> np.ndarray:
    """[vocab] bool -> [ceil(vocab / 32)] int32."""
    words = np.zeros(-(-len(ids) // _WORD), np.int32)
    packed = np.packbits(ids, bitorder="little")
    words.view(np.uint8)[: len(packed)] = packed
    return words


@lru_cache(maxsize=4)
def everything(vocab: int) -> np.ndarray:
    """All ids. Not to be changed."""
    return words_of(np.ones(vocab, dtype=bool))


def without(words: np.ndarray, ids: Sequence[int] | np.ndarray, vocab: int) -> np.ndarray:
    """A copy that lacks `ids`; those beyond the vocabulary mean nothing."""
    left = words.copy()
    if not len(ids):
        return left
    given = np.asarray(ids, dtype=np.int64)
    given = given[(given >= 0) & (given < vocab)]
    bits = np.left_shift(np.uint32(1), (given % _WORD).astype(np.uint32))
    np.bitwise_and.at(left.view(np.uint32), given // _WORD, ~bits)
    return left
