"""All-reduce over tensor-parallel ranks with the same bits on every rank and in any batch.

Terms are added element by element in rank order, in float32, and rounded once; so it doesn't matter
which rank adds which elements. A small tensor is all-gathered, and every rank adds all of it: one
round. A large one takes a reduce-scatter (an all-to-all, after which each rank adds its share of
the elements) and an all-gather of the sums: two rounds, but less data.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor
from torch.nn.functional import pad

from penstock_kernels.reference import rank_sum as plain_rank_sum

ROUND_BYTES = 2 << 20
"""Bytes that a rank could receive in the time that a second round costs beyond its data: some ten
microseconds at a few hundred GB/s between the GPUs of one machine. Not measured on GPUs yet; the
value doesn't affect results."""

SHARE = 16
"""A share's number of elements is a multiple of this, so that copies and kernels can use aligned
vector accesses."""


class Exchange(Protocol):
    """The collectives of `Group` that sums need."""

    def gather(self, x: Tensor) -> Tensor: ...

    def exchange(self, x: Tensor) -> Tensor: ...


def in_halves(tensor: int, size: int) -> bool:
    """Returns whether to sum in two rounds a tensor of `size` bytes on each of `tensor` ranks.

    In one round, a rank receives the size tensor - 1 times; in two rounds 2 * (tensor - 1) / tensor
    times, which for two ranks is the same.
    """
    whole, halves = (tensor - 1) * size, 2 * (tensor - 1) * size // tensor
    return whole - halves > ROUND_BYTES


def sum_whole(group: Exchange, x: Tensor) -> Tensor:
    """Sums by one all-gather."""
    return rank_sum(group.gather(x))


def sum_in_halves(group: Exchange, x: Tensor, tensor: int) -> Tensor:
    """Sums by an all-to-all of shares and an all-gather of their sums. `tensor` is the number of
    ranks."""
    flat = x.reshape(-1)
    share = -(-len(flat) // (tensor * SHARE)) * SHARE
    shares = lengthened(flat, tensor * share).view(tensor, share)
    sums = group.gather(rank_sum(group.exchange(shares)))
    return sums.view(-1)[: len(flat)].view(x.shape)


def rank_sum(parts: Tensor) -> Tensor:
    """Sums over the first dimension in its order, in float32: [ranks, *shape] -> [*shape]."""
    if not parts.is_cuda:
        return plain_rank_sum(parts)
    # Imports triton, which only workers with a GPU need to have installed.
    from penstock_kernels.triton.rowwise.rank_sum import rank_sum as device_rank_sum

    return device_rank_sum(parts)


def lengthened(x: Tensor, size: int) -> Tensor:
    """Returns x with its last dimension padded with zeros to `size`. Returns x itself where nothing
    is missing: torch's `pad` would copy it."""
    short = size - x.shape[-1]
    return pad(x, (0, short)) if short else x
