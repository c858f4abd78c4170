"""Block copies against indexing."""

from __future__ import annotations

import pytest
import torch

from penstock_kernels.triton.attention.block_copies import (
    copy_blocks,
    gather_blocks,
    scatter_blocks,
)

pytestmark = pytest.mark.timeout(240)


def cache(device: torch.device) -> torch.Tensor:
    """[heads, blocks, width], strided by head as a worker's cache may be."""
    rows = torch.randn(7, 3, 96, generator=torch.Generator().manual_seed(1))
    return rows.to(torch.bfloat16).to(device).transpose(0, 1)


def test_copies_in_order(device: torch.device) -> None:
    """A chain, a swap, a target written twice: as if one after the other."""
    blocks = cache(device)
    wanted = blocks.clone()
    pairs = [(0, 1), (1, 2), (3, 4), (4, 3), (5, 6), (0, 6)]
    for source, target in pairs:
        wanted[:, target] = wanted[:, source]
    copy_blocks(blocks, [source for source, _ in pairs], [target for _, target in pairs])
    assert torch.equal(blocks, wanted)


def test_out_and_in(device: torch.device) -> None:
    blocks = cache(device)
    before = blocks.clone()
    staging = torch.zeros(4, 3, 96, dtype=blocks.dtype, device=device)
    gather_blocks(blocks, [6, 2, 3], staging)
    assert torch.equal(staging[:3], before[:, [6, 2, 3]].transpose(0, 1))
    assert not staging[3].any()
    scatter_blocks(staging, blocks, [0, 1, 6])
    wanted = before.clone()
    wanted[:, [0, 1, 6]] = before[:, [6, 2, 3]]
    assert torch.equal(blocks, wanted)


def test_nothing_to_copy(device: torch.device) -> None:
    blocks = cache(device)
    before = blocks.clone()
    copy_blocks(blocks, [], [])
    assert torch.equal(blocks, before)


def test_what_does_not_fit(device: torch.device) -> None:
    with pytest.raises(ValueError, match="can't be copied"):
        gather_blocks(cache(device), [0], torch.zeros(1, 2, 96, device=device))
