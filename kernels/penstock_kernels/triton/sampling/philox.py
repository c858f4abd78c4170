"""reference.philox's counter-based random numbers on the device: Philox-4x32-10 (Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_LOW = tl.constexpr(0xFFFFFFFF)


@triton.jit
def draw_uniform(seed, sequence, token):
    """Returns one float64 in [0, 1) with 53 bits. The arguments are int64 scalars; `seed` is the
    bit pattern of a uint64."""
    c0, c1 = token & _LOW, (token >> 32) & _LOW
    c2, c3 = sequence & _LOW, sequence & 0
    k0, k1 = seed & _LOW, (seed >> 32) & _LOW
    for _ in tl.static_range(10):
        # int64 products wrap modulo 2**64, so their bits are those of the unsigned product.
        left, right = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (
            ((right >> 32) & _LOW) ^ c1 ^ k0,
            right & _LOW,
            ((left >> 32) & _LOW) ^ c3 ^ k1,
            left & _LOW,
        )
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    whole = (c0 >> 5) * 67108864 + (c1 >> 6)
    return whole.to(tl.float64) * 1.1102230246251565e-16  # 2**-53


@triton.jit
def _uniform(seeds, sequences, tokens, out):
    at = tl.program_id(0)
    draw = draw_uniform(tl.load(seeds + at), tl.load(sequences + at), tl.load(tokens + at))
    tl.store(out + at, draw)


def uniform(seeds: Tensor, sequences: Tensor, tokens: Tensor) -> Tensor:
    """reference.uniform with tensors instead of lists, each [n] int64 (a seed of 2**63 or above is
    given by its bit pattern). Returns [n] float64."""
    out = torch.empty(seeds.shape, dtype=torch.float64, device=seeds.device)
    if seeds.shape[0]:
        _uniform[(seeds.shape[0],)](seeds, sequences, tokens, out, num_warps=1)
    return out
