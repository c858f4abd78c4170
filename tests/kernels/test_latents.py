"""Values that are parts of keys: the same bits as values that are stored by themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock_kernels import reference

SIZE, LATENT, HEADS, SLOTS, BLOCK = 43, 34, 6, 192, 16


def random(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_attention_over_parts_of_keys(dtype: torch.dtype) -> None:
    floats = torch.float32 if dtype == torch.int8 else dtype
    keys: reference.KVRows = torch.zeros(1, SLOTS, SIZE, dtype=floats)
    if dtype == torch.int8:
        keys = reference.Int8Rows(1, SLOTS, SIZE)
    vectors = random(SLOTS, 1, SIZE, seed=1, dtype=floats)
    vectors[-BLOCK:] = 0
    reference.write_rows(vectors, keys, torch.arange(SLOTS))
    own = keys.index_select(1, torch.arange(SLOTS))[..., -LATENT:].contiguous()
    views = reference.LastNumbers(keys, LATENT)
    assert tuple(views.shape) == (1, SLOTS, LATENT)
    assert torch.equal(views.index_select(1, torch.arange(SLOTS)), own)
    plan = reference.plan_attention(
        [np.array([3, 0, 7, 5, 9, 1, 2, 4])],
        np.array([20]),
        np.array([121]),
        block_size=BLOCK,
        zero_slot=SLOTS - BLOCK,
        group=HEADS,
    )
    query = random(20, HEADS, SIZE, seed=2, dtype=floats)
    found = reference.paged_attention(query, keys, views, plan, 0.2)
    assert found.shape == (20, HEADS, LATENT)
    assert torch.equal(found, reference.paged_attention(query, keys, own, plan, 0.2))


def test_they_are_written_with_their_keys_only() -> None:
    views = reference.LastNumbers(torch.zeros(1, 4, SIZE), LATENT)
    with pytest.raises(TypeError, match="parts of keys"):
        views.index_copy_(1, torch.arange(4), torch.zeros(1, 4, LATENT))
