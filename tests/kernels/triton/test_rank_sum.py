"""Sums over ranks against the plain form, to the bit."""

from __future__ import annotations

import pytest
import torch

from penstock_kernels import reference
from penstock_kernels.triton.rowwise.rank_sum import rank_sum
from penstock_kernels.triton.tiles import RANK_SUM_BLOCK

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("shape", [(1,), (5, 33), (3, RANK_SUM_BLOCK - 1), (0, 7)], ids=str)
def test_sums_have_the_plain_forms_bits(
    ranks: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    parts = torch.randn(ranks, *shape, generator=torch.Generator().manual_seed(ranks)).to(dtype)
    parts[:, ..., :1] *= 1e4  # So that the order matters.
    ours = rank_sum(parts.to(device))
    assert ours.dtype == dtype
    assert torch.equal(ours.cpu(), reference.rank_sum(parts))


def test_the_plain_form_adds_in_order_and_rounds_once() -> None:
    parts = torch.tensor([2.0**24, 1.0, 1.0, -(2.0**24)])[:, None]
    assert reference.rank_sum(parts).item() == 0  # In order in float32; 2 in float64.
    small = torch.tensor([1.0, 2.0**-8, 2.0**-8], dtype=torch.bfloat16)[:, None]
    assert reference.rank_sum(small).item() == 1 + 2**-7  # Each sum rounded would give 1.
    given = parts.clone()
    reference.rank_sum(given)
    assert torch.equal(given, parts)
