"""A checksum of a KV block's contents and of its key, against accidents.

Of each stripe of 1,024 bytes, NH (the universal hash of UMAC, RFC 4418, 5.2.1): to words of 32 bits
numbers are added, and pairs of them multiplied and summed, in two lanes, whose numbers are those of
the other one shifted. A lane's sums, after the key and the length, are the coefficients of a
polynomial modulo 2^61 - 1. A random change is missed once in 2^64. It isn't cryptographic: as the
numbers are known, other contents with the same checksum can be constructed.
"""

from __future__ import annotations

import numpy as np

CHECKSUM_BYTES = 16

_STRIPE, _LANES, _SHIFT = 1024, 2, 4
_WORDS = _STRIPE // 4
_PRIME = 2**61 - 1
_POINTS = (0x0F3A5C6E9B1D2847, 0x1B6D93A7C4E8501F)
_HALF = 2**32 - 1


def checksum(key: bytes, payload: bytes | memoryview) -> bytes:
    """CHECKSUM_BYTES of them. key: a multiple of 8 bytes."""
    data = np.frombuffer(payload, dtype=np.uint8)
    size = len(data)
    data = np.pad(data, (0, -size % _STRIPE))
    stripes = data.view("<u4").reshape(-1, _WORDS)
    head = [int.from_bytes(key[at : at + 8], "little") for at in range(0, len(key), 8)]
    sums = []
    for lane, point in enumerate(_POINTS):
        added = _NUMBERS[_SHIFT * lane : _SHIFT * lane + _WORDS]
        both = (stripes + added).astype(np.uint64)
        total = 0
        for number in (*head, size, *(both[:, ::2] * both[:, 1::2]).sum(axis=1).tolist()):
            for half in (number & _HALF, number >> 32):
                total = (total + half) * point % _PRIME
        sums.append(total.to_bytes(8, "little"))
    return b"".join(sums)


def _numbers() -> np.ndarray:
    """What is added to the words: the upper halves of SplitMix64's numbers (Steele, Lea and Flood,
    "Fast splittable pseudorandom number generators", OOPSLA 2014), from 0 on."""
    state, found, mask = 0, [], 2**64 - 1
    for _ in range(_WORDS + _SHIFT * (_LANES - 1)):
        state = (state + 0x9E3779B97F4A7C15) & mask
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
        found.append((mixed ^ (mixed >> 31)) >> 32)
    return np.array(found, dtype=np.uint32)


_NUMBERS = _numbers()
