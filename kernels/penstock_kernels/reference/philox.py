"""Philox-4x32-10: counter-based random numbers.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = 0xFFFFFFFF


def philox_4x32_10(counter: Tensor, key: Tensor) -> Tensor:
    """Returns four random 32-bit words for each counter.

    `counter` is [n, 4] and `key` [n, 2], int64 tensors of values in [0, 2**32). The result has the
    shape and range of `counter`.
    """
    c0, c1, c2, c3 = counter.unbind(-1)
    k0, k1 = key.unbind(-1)
    for _ in range(_ROUNDS):
        # int64 products wrap modulo 2**64, so their bits are those of the unsigned product.
        left, right = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((right >> 32) & _LOW) ^ c1 ^ k0,
            right & _LOW,
            ((left >> 32) & _LOW) ^ c3 ^ k1,
            left & _LOW,
        )
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return torch.stack((c0, c1, c2, c3), -1)


def uniform(seeds: list[int], sequences: list[int], tokens: list[int]) -> list[float]:
    """Returns one float64 in [0, 1) for each (seed, sequence, token): 53 bits, a pure function of
    the three. The seed is the key; the counter is (token low, token high, sequence, 0).

    0 <= seed < 2**64, 0 <= sequence < 2**32, 0 <= token < 2**64.
    """
    counter = [[t & _LOW, t >> 32, c, 0] for t, c in zip(tokens, sequences, strict=True)]
    key = [[s & _LOW, s >> 32] for s in seeds]
    words = philox_4x32_10(
        torch.tensor(counter, dtype=torch.int64).view(-1, 4),
        torch.tensor(key, dtype=torch.int64).view(-1, 2),
    )
    high, low = words[:, 0] >> 5, words[:, 1] >> 6
    return ((high * (1 << 26) + low).double() / (1 << 53)).tolist()
