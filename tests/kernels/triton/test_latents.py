"""Attention over latents and products of heads, against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock_kernels.triton.attention.kv_scales import KVScales
from penstock_kernels.triton.attention.paged import paged_attention
from penstock_kernels.triton.attention.plan import plan_attention
from penstock_kernels.triton.linear.per_head import per_head
from penstock_kernels.triton.tiles import (
    AttentionChoice,
    AttentionTiles,
    latent_choice,
    latent_group,
)

pytestmark = pytest.mark.timeout(300)

HEADS, TURNING, RANK, BLOCK, LENGTH = 24, 6, 40, 16, 70
FEW = AttentionTiles(16, 32, 64, 4, 2)
SAME = AttentionChoice(FEW, FEW, split_queries=3)
BOUNDS = {torch.float32: 5e-6, torch.bfloat16: 3e-2}


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def attended(
    query: Tensor,
    keys: Tensor,
    start: int,
    count: int,
    choice: AttentionChoice,
    device: object,
    scale: float | None = None,
) -> Tensor:
    """Attends with `count` queries from `start` on, over scattered blocks; not-a-number elsewhere.
    `scale`: of all keys."""
    table = np.array([3, 0, 6, 2, 5])
    cache = torch.full((7 * BLOCK, 1, TURNING + RANK), float("nan"), dtype=keys.dtype)
    at = np.arange(start + count)
    cache[torch.from_numpy(table[at // BLOCK] * BLOCK + at % BLOCK), 0] = keys[: start + count]
    there = cache.to(device).transpose(0, 1)
    plan = plan_attention(
        [table],
        np.array([count]),
        np.array([start + count]),
        block_size=BLOCK,
        group=latent_group(HEADS, choice),
        choice=choice,
        device=torch.device("cpu") if device is None else there.device,
    )
    own, scales = query[start : start + count].to(device), None
    if scale is not None:
        of_groups = torch.full((HEADS // plan.group,), scale, device=there.device)
        scales = KVScales.of(of_groups, of_groups)
    return paged_attention(own, there, there, plan, 0.2, scales=scales, turning=TURNING).cpu()


def test_latents_with_a_scale(device: torch.device) -> None:
    """A power of two, which changes no bits: of a chunk, and of a decode."""
    query, keys = drawn(1, LENGTH, HEADS, TURNING + RANK), drawn(2, LENGTH, TURNING + RANK)
    for start, count in ((60, 10), (69, 1)):
        plain = attended(query, keys, start, count, SAME, device)
        assert torch.equal(attended(query, keys / 8, start, count, SAME, device, 8.0), plain)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_all_heads_share_the_latents(dtype: torch.dtype, device: torch.device) -> None:
    """More heads than a tile has rows; over two splits; a decode has a chunk's bits."""
    query = drawn(1, LENGTH, HEADS, TURNING + RANK).to(dtype)
    keys = drawn(2, LENGTH, TURNING + RANK).to(dtype)
    chunk = attended(query, keys, 60, 10, SAME, device)
    scores = torch.einsum("qhd,kd->hqk", query[60:].double(), keys.double()) * 0.2
    hidden = torch.arange(LENGTH)[None, :] > torch.arange(60, LENGTH)[:, None]
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    wanted = torch.einsum("hqk,kd->qhd", weights, keys[:, TURNING:].double())
    assert chunk.shape == wanted.shape
    assert (chunk.double() - wanted).abs().max() < BOUNDS[dtype]
    decode = attended(query, keys, 65, 1, SAME, device)
    assert torch.equal(decode[0], chunk[5])


def test_groups_of_heads() -> None:
    choice = latent_choice(batch_invariant=True)
    assert choice.few == choice.many
    assert [latent_group(heads, choice) for heads in (1, 16, 20, 24, 128)] == [1, 16, 10, 12, 16]


def test_products_of_heads(device: torch.device) -> None:
    """The heads are a part of wider ones; a row's bits are its own."""
    weight = drawn(4, 3, 70, 20).bfloat16()
    x = drawn(5, 5, 3, 28).bfloat16()[..., 8:]
    there, held = x.to(device), weight.to(device)
    whole = per_head(there, held)
    wanted = torch.einsum("rhi,hoi->rho", x.double(), weight.double())
    assert (whole.cpu().double() - wanted).abs().max() < wanted.abs().max() * 2.0**-8
    assert torch.equal(per_head(there[2:3], held), whole[2:3])
