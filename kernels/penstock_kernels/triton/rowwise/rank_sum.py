"""The sum over the ranks of a group, in rank order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.rounding import round_to
from penstock_kernels.triton.tiles import RANK_SUM_BLOCK, RANK_SUM_WARPS


@triton.jit
def _rank_sum(parts, out, size, RANKS: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    total = tl.load(parts + place, mask=inside, other=0.0).to(tl.float32)
    for _ in tl.static_range(1, RANKS):
        parts += size
        total += tl.load(parts + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, round_to(total, out.dtype.element_ty), mask=inside)


def rank_sum(parts: Tensor) -> Tensor:
    """parts[0] + parts[1] + …, added one after another in float32 and rounded once.

    `parts` is [ranks, *shape], contiguous, of any float dtype. Returns [*shape] in the same dtype,
    with the bits of `reference.rank_sum` for each element, however the elements are divided among
    calls.
    """
    out = torch.empty(parts.shape[1:], dtype=parts.dtype, device=parts.device)
    size = out.numel()
    if size:
        _rank_sum[(triton.cdiv(size, RANK_SUM_BLOCK),)](
            parts=parts,
            out=out,
            size=size,
            RANKS=len(parts),
            BLOCK=RANK_SUM_BLOCK,
            num_warps=RANK_SUM_WARPS,
        )
    return out
