"""Paged attention against dense float64 attention, and against itself in other company."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock_kernels import reference

pytestmark = pytest.mark.timeout(240)

HEADS = [(9, 3, 64), (5, 1, 24), (7, 7, 34), (16, 8, 128), (40, 2, 16)]
LENGTH = 150


@dataclass
class Sequence:
    """A sequence's own tensors: everything that its attention may depend on."""

    query: Tensor
    key: Tensor
    value: Tensor


def sequence(
    seed: int, length: int, heads: int, kv_heads: int, dim: int, dtype: torch.dtype
) -> Sequence:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    return Sequence(
        draw(length, heads, dim), draw(length, kv_heads, dim), draw(length, kv_heads, dim)
    )


def run_step(
    work: list[tuple[Sequence, int, int]],
    block_size: int,
    seed: int,
    last_seen: np.ndarray | None = None,
    between: np.ndarray | None = None,
    **rule: Any,
) -> list[Tensor]:
    """Attention of (sequence, start, count) in one call over a shuffled, dirty cache. last_seen,
    between: of all queries.  rule: of paged_attention."""
    rng = np.random.default_rng(seed)
    blocks = [-(-(start + count) // block_size) for _, start, count in work]
    shuffled = rng.permutation(sum(blocks) + 2)
    first = work[0][0]
    slots = (len(shuffled) + 1) * block_size
    key_cache = torch.full(
        (first.key.shape[1], slots, first.key.shape[2]), float("nan"), dtype=first.key.dtype
    )
    key_cache[:, len(shuffled) * block_size :] = 0
    value_cache = key_cache.clone()
    tables, used = [], 0
    for (one, start, count), need in zip(work, blocks, strict=True):
        table = shuffled[used : used + need]
        used += need
        at = np.arange(start + count)
        place = torch.from_numpy(table[at // block_size] * block_size + at % block_size)
        reference.write_kv(
            one.key[: start + count], one.value[: start + count], key_cache, value_cache, place
        )
        tables.append(table)
    counts = np.array([count for _, _, count in work])
    plan = reference.plan_attention(
        tables,
        counts,
        np.array([start + count for _, start, count in work]),
        block_size=block_size,
        zero_slot=len(shuffled) * block_size,
        group=first.query.shape[1] // first.key.shape[1],
        last_seen=last_seen,
        between=between,
    )
    query = torch.cat([one.query[start : start + count] for one, start, count in work])
    padding = torch.full((5, *query.shape[1:]), float("nan"), dtype=query.dtype)
    out = reference.paged_attention(
        torch.cat((query, padding)), key_cache, value_cache, plan, query.shape[2] ** -0.5, **rule
    )
    assert not out[len(query) :].any()
    return list(out[: len(query)].split(counts.tolist()))


def dense(
    one: Sequence,
    window: int = LENGTH,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    shown: Tensor | None = None,
) -> Tensor:
    """shown: [tokens] bool, which see one another."""
    length, heads, dim = one.query.shape
    group = heads // one.key.shape[1]
    key = one.key.double().repeat_interleave(group, 1)
    value = one.value.double().repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", one.query.double(), key) * dim**-0.5
    if soft_cap is not None:
        scores = soft_cap * (scores / soft_cap).tanh()
    hidden = (
        torch.ones(length, length).triu(1).bool() | torch.ones(length, length).tril(-window).bool()
    )
    if shown is not None:
        hidden = hidden & ~(shown[:, None] & shown)
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is None:
        weights = scores.softmax(-1)
    else:
        beside = sinks.double()[:, None, None].expand(heads, length, 1)
        weights = torch.cat((scores, beside), -1).softmax(-1)[..., :-1]
    return torch.einsum("hqk,khd->qhd", weights, value)


@pytest.mark.parametrize("shape", HEADS, ids=str)
def test_equals_dense_attention(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    one = sequence(1, LENGTH, *shape, dtype)
    (ours,) = run_step([(one, 0, LENGTH)], 16, 0)
    bound = 4e-6 if dtype == torch.float32 else 1e-2
    assert (ours.double() - dense(one)).abs().max() < bound


@pytest.mark.parametrize("start", [0, 9, 30])
def test_joined_spans_see_one_another_and_not_what_is_between(start: int) -> None:
    """Some splits have nothing but text between them. A sequence before them has none."""
    one, other = (sequence(seed, LENGTH, 9, 3, 64, torch.float32) for seed in (1, 2))
    shown = torch.zeros(LENGTH, dtype=torch.bool)
    shown[30:50] = shown[LENGTH - 20 : LENGTH - 5] = True
    seen, between = np.arange(LENGTH), np.zeros(LENGTH, dtype=bool)
    seen[30 : LENGTH - 5] = LENGTH - 6
    between[30 : LENGTH - 5] = ~shown.numpy()[30 : LENGTH - 5]
    before, ours = run_step(
        [(other, 3, 40), (one, start, LENGTH - start)],
        16,
        0,
        np.concatenate((np.arange(3, 43), seen[start:])),
        np.concatenate((np.zeros(40, dtype=bool), between[start:])),
    )
    true = dense(one, shown=shown)
    assert (true - dense(one)).abs().max() > 0.01, "it does make a difference"
    assert (ours.double() - true[start:]).abs().max() < 4e-6
    assert torch.equal(before, run_step([(other, 3, 40)], 16, 1)[0])


@pytest.mark.parametrize("window", [1, 63, 64, 100])
@pytest.mark.parametrize("soft_cap", [None, 1.5])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_rules_of_scores(window: int, soft_cap: float | None, with_sinks: bool) -> None:
    one = sequence(2, LENGTH, 9, 3, 64, torch.float32)
    sinks = torch.linspace(-3.0, 6.0, 9) if with_sinks else None
    rule = {"window": window, "soft_cap": soft_cap, "sinks": sinks}
    (ours,) = run_step([(one, 0, LENGTH)], 16, 0, **rule)
    assert (ours.double() - dense(one, window, soft_cap, sinks)).abs().max() < 4e-6
    (last,) = run_step([(one, LENGTH - 1, 1)], 16, 1, **rule)
    assert torch.equal(last[0], ours[-1])


@pytest.mark.parametrize("shape", HEADS, ids=str)
def test_bits_depend_on_the_sequence_alone(
    shape: tuple[int, int, int], dtype: torch.dtype, threads: int
) -> None:
    one = sequence(1, LENGTH, *shape, dtype)
    (whole,) = run_step([(one, 0, LENGTH)], 16, 0)
    for block_size, chunk in ((1, 50), (7, 64), (16, 33), (32, 149), (16, 1)):
        for start in range(0, LENGTH, chunk):
            count = min(chunk, LENGTH - start)
            (part,) = run_step([(one, start, count)], block_size, start)
            assert torch.equal(part, whole[start : start + count]), (block_size, chunk, start)


@pytest.mark.parametrize("shape", HEADS, ids=str)
def test_bits_do_not_depend_on_company(
    shape: tuple[int, int, int], dtype: torch.dtype, threads: int
) -> None:
    rng = np.random.default_rng(3)
    one = sequence(1, LENGTH, *shape, dtype)
    (whole,) = run_step([(one, 0, LENGTH)], 16, 0)
    for others, start, count in ((1, 149, 1), (2, 0, 150), (31, 149, 1), (32, 60, 70), (64, 64, 1)):
        work = []
        for other in range(others):
            length = int(rng.integers(1, 140))
            count_other = int(rng.integers(1, min(length, 20) + 1))
            work.append(
                (sequence(100 + other, length, *shape, dtype), length - count_other, count_other)
            )
        work.insert(others // 2, (one, start, count))
        part = run_step(work, 16, others)[others // 2]
        assert torch.equal(part, whole[start : start + count]), (others, start)
