"""Sums over tensor ranks, whose bits are the same on every rank and in any batch.

What the ranks have is added in their order, in float32, and rounded once: element by element, so
it doesn't matter which rank adds which elements.  A small tensor goes whole to everyone, who all
add: one round.  A large one goes in two halves: each rank gets everyone's part of its own share of
the elements, adds that, and hands the sums round.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor
from torch.nn.functional import pad

from penstock_kernels.reference import rank_sum as plain_rank_sum

ROUND_BYTES = 2 << 20
"""That a rank could receive in the time that a second round takes beyond its data, some ten
microseconds at a few hundred GB/s between GPUs of a machine.  Still to be measured on GPUs; it
changes no bits."""

SHARE = 16
"""Elements that a share is a multiple of: vectors of bytes that copies and kernels like."""


class Exchange(Protocol):
    """What is needed of Group."""

    def gather(self, x: Tensor) -> Tensor: ...

    def exchange(self, x: Tensor) -> Tensor: ...


def in_halves(tensor: int, size: int) -> bool:
    """Whether a tensor of `size` bytes on each of so many ranks is summed in two halves. Whole, a
    rank receives it tensor - 1 times; in halves 2 * (tensor - 1) / tensor times, which for two
    ranks is as much."""
    whole, halves = (tensor - 1) * size, 2 * (tensor - 1) * size // tensor
    return whole - halves > ROUND_BYTES


def sum_whole(group: Exchange, x: Tensor) -> Tensor:
    """By one gather."""
    return rank_sum(group.gather(x))


def sum_in_halves(group: Exchange, x: Tensor, tensor: int) -> Tensor:
    """By an exchange of shares and a gather of their sums. tensor: how many ranks."""
    flat = x.reshape(-1)
    share = -(-len(flat) // (tensor * SHARE)) * SHARE
    shares = lengthened(flat, tensor * share).view(tensor, share)
    sums = group.gather(rank_sum(group.exchange(shares)))
    return sums.view(-1)[: len(flat)].view(x.shape)


def rank_sum(parts: Tensor) -> Tensor:
    """parts: [ranks, *shape] -> [*shape]."""
    if not parts.is_cuda:
        return plain_rank_sum(parts)
    # Needs triton, which only a worker with a GPU has to have.
    from penstock_kernels.triton.rowwise.rank_sum import rank_sum as device_rank_sum

    return device_rank_sum(parts)


def lengthened(x: Tensor, size: int) -> Tensor:
    """x with zeros behind, so that its last dimension is `size`. x itself where it is already:
    torch's `pad` would copy it."""
    short = size - x.shape[-1]
    return pad(x, (0, short)) if short else x
