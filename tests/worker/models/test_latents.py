"""What a model of latents takes in the KV cache, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock_kernels.cpu.decoder import DecoderShape
from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.parallel.place import RankPlace
from penstock_worker.parallel.shard import shard_of
from tests.worker.models.family_cases import read

RANK, ROTATING, LAYERS = 48, 16, 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_a_latent_is_stored_once(dtype: torch.dtype) -> None:
    shape = CacheShape.of(read("deepseek-v2-lite"), 16, dtype)
    per_token = (RANK + ROTATING) * dtype.itemsize + (4 if dtype == torch.int8 else 0)
    assert ReferenceAttention.block_bytes(shape) == LAYERS * 16 * per_token
    views = ReferenceAttention(shape, 5).kv_blocks()
    assert sum(view[0].nbytes for view in views) == LAYERS * 16 * per_token


def test_the_cpu_kernels_store_it_in_two_orders() -> None:
    shape = DecoderShape(4, 1, RANK + ROTATING, 16, RANK)
    assert shape.obstacle() is None
    assert sum(shape.halves("bfloat16")) == 16 * 2 * (2 * RANK + ROTATING)
    assert sum(shape.halves("int8")) == 16 * (2 * RANK + ROTATING + 2 * 4)


def test_ranks_share_heads_and_each_has_the_latent() -> None:
    config = read("deepseek-v2-lite")
    assert shard_of(config, RankPlace(pipeline=3, rank=1)).own.num_layers == 1
    for rank in (0, 1):
        own = shard_of(config, RankPlace(tensor=2, rank=rank)).own
        assert own.num_heads == config.num_heads // 2
        assert own.num_kv_heads == 1


def test_scattered_blocks_of_latents_are_read() -> None:
    """Copies of a block's bytes carry all of it: what is swapped out comes back."""
    shape = CacheShape.of(read("deepseek-v2-lite"), 16, torch.float32)
    attention = ReferenceAttention(shape, 4)
    for view in attention.kv_blocks():
        view[1] = np.arange(view.shape[1], dtype=np.uint8)
        view[2] = view[1]
    for keys, values in zip(attention.keys, attention.values, strict=True):
        one, other = (torch.arange(first * 16, first * 16 + 16) for first in (1, 2))
        for rows in (keys, values):
            found = (rows.index_select(1, at).view(torch.uint8) for at in (one, other))
            assert torch.equal(*found)
