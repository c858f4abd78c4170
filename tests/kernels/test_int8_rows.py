"""The reference's int8 cache: each head's vector as bytes with a scale of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock_kernels.reference import Int8Rows, write_kv

pytestmark = pytest.mark.timeout(240)


def stored(rows: torch.Tensor, slots: torch.Tensor, size: int) -> Int8Rows:
    """rows: [rows, kv_heads, head_dim]."""
    caches = [Int8Rows(rows.shape[1], size, rows.shape[2]) for _ in "kv"]
    for cache in caches:
        cache.levels.fill_(3)
        cache.scales.fill_(torch.nan)
    write_kv(rows, rows, caches[0], caches[1], slots)
    for mine, other in ((caches[0].levels, caches[1].levels), (caches[0].scales, caches[1].scales)):
        assert torch.equal(mine.nan_to_num(), other.nan_to_num())
    return caches[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_each_vector_by_the_definition(dtype: torch.dtype) -> None:
    rows = torch.randn(7, 3, 20, generator=torch.Generator().manual_seed(1)).to(dtype)
    rows[2, 1] = 0
    slots = torch.tensor([9, 0, 4, 5, 11, 2, 8])
    read = stored(rows, slots, 12).index_select(1, slots)
    assert read.dtype == torch.float32
    for token, head in np.ndindex(7, 3):
        vector = rows[token, head].double().numpy()
        peak = np.abs(vector).max()
        levels = np.rint(vector * 127 / peak) if peak else vector
        difference = np.abs(read[head, token].numpy() - levels * peak / 127)
        # A level may fall the other way by float32's rounding, where it is a tie to its last bits.
        assert (difference <= 1e-6 * peak).all()
        assert np.abs(read[head, token].numpy() - vector).max() <= peak / 127 / 2 * 1.001


def test_only_its_slots_are_touched() -> None:
    cache = stored(torch.ones(2, 1, 16), torch.tensor([3, 1]), 5)
    others = torch.tensor([0, 2, 4])
    assert (cache.levels[:, others] == 3).all()
    assert cache.scales[:, others].isnan().all()
    assert (cache.levels[:, [1, 3]] == 127).all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_poison_takes_its_vector_and_no_other(value: float) -> None:
    rows = torch.ones(3, 2, 16)
    rows[1, 0, 5] = value
    read = stored(rows, torch.arange(3), 3).index_select(1, torch.arange(3))
    assert read[0, 1].isnan().all()
    assert read[1].isfinite().all()
    assert read[0, [0, 2]].isfinite().all()
